// What the two halves of the launcher in PyTorch share.
//
// Three callers launch known products: the switch, which overrides PyTorch's own products while it is on; the
// operator torch.ops.fastsgemm.sgemm; and fastsgemm.sgemm with tensors. Each call is described by a key. If
// the key is in the caller's table, the call is launched or passed on as was decided. If not, or if anything
// about the call is unusual, Python does the whole call and says what is to be done with the next one like
// it.
//
// `torch_kernels.cpp` has the kernels of PyTorch's dispatcher, `torch_python.cpp` the module that Python
// imports. They are compiled side by side, because the headers of both take long.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/GradMode.h>
#include <c10/core/Scalar.h>

#include <optional>

#include "launcher.h"

namespace fastsgemm {

using at::Tensor;
using c10::Scalar;

// The operators of PyTorch in their forms. The last two are torch.ops.fastsgemm.sgemm and fastsgemm.sgemm.
// clang-format off
enum Form : int {
    MM, MM_OUT, MM_DTYPE, MM_DTYPE_OUT, BMM, BMM_OUT, BMM_DTYPE, BMM_DTYPE_OUT, DOT,
    ADDMM, ADDMM_OUT, ADDMM_, ADDMM_DTYPE, ADDMM_DTYPE_OUT, ADDMM_ACTIVATION, ADDMM_ACTIVATION_OUT,
    BADDBMM, BADDBMM_OUT, BADDBMM_, BADDBMM_DTYPE, BADDBMM_DTYPE_OUT, ADDMV, ADDMV_OUT, ADDMV_, OPERATOR, DIRECT, FORMS
};
constexpr const char *NAMES[FORMS] = {
    "mm", "mm.out", "mm.dtype", "mm.dtype_out", "bmm", "bmm.out", "bmm.dtype", "bmm.dtype_out", "dot",
    "addmm", "addmm.out", "addmm_", "addmm.dtype", "addmm.dtype_out", "_addmm_activation", "_addmm_activation.out",
    "baddbmm", "baddbmm.out", "baddbmm_", "baddbmm.dtype", "baddbmm.dtype_out", "addmv", "addmv.out", "addmv_",
    "fastsgemm::sgemm", "fastsgemm.sgemm",
};
// clang-format on

// What is never destroyed: a thread of PyTorch's may call a kernel of ours while the switch is turned off, or
// while the process ends.
template <typename T>
T &immortal() {
    return *new T();
}

inline auto &tables = immortal<std::array<Table, FORMS>>();

// One call. Where `out` is null, the result is a new tensor; C is null where nothing is added.
struct Call {
    const Tensor &a, &b;
    const Tensor *c = nullptr, *out = nullptr;
    const Scalar *beta = nullptr, *alpha = nullptr;
    std::optional<at::ScalarType> of_halves = std::nullopt;  // the result's type, of two factors of 16 bits
    int64_t options = 0;                                     // what else the caller asks for, as a number

    // What the caller asks for, as a number that belongs to the key.
    int64_t request() const { return of_halves ? static_cast<int64_t>(*of_halves) : options; }
};

// What only the operator has.
struct OperatorOptions {
    std::optional<std::string_view> precision;
    bool batch_invariant, symmetric;
    const Tensor *c;  // also where beta is 0, so that it is not read
};

// Describe the operands, and find their addresses.
struct Operands {
    Key key;
    Values values;
    bool have_memory;

    explicit Operands(const Call &call);
};

inline bool is_recorded(const Tensor &x) {
    return (x.requires_grad() && c10::GradMode::is_enabled()) || x._fw_grad(0).defined();
}

// In torch_kernels.cpp.

// Launch the plan of an entry. Empty: the call is unusual, and nothing was done.
std::optional<Tensor> launch(const Entry &entry, const Call &call, Operands &operands);
// Add an entry, which was decided in this epoch of its table.
void insert(Form form, const Key &key, std::shared_ptr<Entry> entry, uint64_t epoch);
// Register the kernels of the switch in place of those that are registered; a failure changes nothing. With
// `rounds`, products of 16-bit factors whose result has their type are replaced, too. The caller does not
// hold Python's lock in the next three: PyTorch may need it while it holds locks of its own.
void register_switch(const std::vector<Form> &forms, c10::DispatchKey key, bool rounds);
void unregister_switch();
// Put the kernels of torch.ops.fastsgemm.sgemm above Python's, for as long as the process lives.
void register_operator();

// Find the driver, and PyTorch's function for the current stream; null for a PyTorch without CUDA.
void connect(const char *cuda, const char *torch_cuda);

// In torch_python.cpp.

// Let Python do a call, and remember what it says of others like it. Empty: the kernel before ours is due.
std::optional<Tensor> ask_python(Form form, const Call &call, const Key &key,
                                 const OperatorOptions *options = nullptr);
// Let Python make a device ready for the first call of this thread that is passed on to PyTorch.
void prepare_to_pass_on(int device);
// Let Python register the switch's kernels again: one that was there before them has been taken back by its
// owner.
void renew_switch();

}  // namespace fastsgemm
