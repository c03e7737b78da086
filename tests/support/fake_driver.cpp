// A CUDA driver for tests without a device: a launch is handed to a function of the test.
#include <cstdint>

extern "C" {
int (*fake_launch)(const void *config, void *kernel, void **arguments) = nullptr;
uint64_t fake_stream = 5;   // PyTorch's current stream
uint64_t fake_context = 1;  // what is current
int fake_device = 0;        // the device of a context that is not the primary one
int fake_pushed = 0;        // contexts that were pushed and not popped

int cuCtxGetCurrent(void **context) {
    *context = reinterpret_cast<void *>(fake_context);
    return 0;
}
int cuCtxGetDevice(int *device) {
    *device = fake_device;
    return 0;
}
int cuCtxPushCurrent_v2(void *) {
    ++fake_pushed;
    return 0;
}
int cuCtxPopCurrent_v2(void **) {
    --fake_pushed;
    return 0;
}
int cuLaunchKernelEx(const void *config, void *kernel, void **arguments, void **) {
    return fake_launch(config, kernel, arguments);
}
int cuThreadExchangeStreamCaptureMode(int *) {
    return 0;
}
int cuGetErrorName(int, const char **name) {
    *name = "CUDA_ERROR_FAKE";
    return 0;
}
int aoti_torch_get_current_cuda_stream(int32_t, void **stream) {
    *stream = reinterpret_cast<void *>(fake_stream);
    return 0;
}
}
