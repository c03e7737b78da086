// Finds the plan of a product by its operands and launches it: what a known call costs on the host.
//
// Python makes plans (`fastsgemm.call.product`) and hands them over as plain data: kernels, grids, and a
// block of arguments with slots for what differs from call to call. This file needs neither Python nor
// PyTorch nor CUDA's headers, so that it can be tested with a driver that only records launches;
// `torch_kernels.cpp` adds PyTorch.
#pragma once

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fastsgemm {

// The driver's structures, as cuda.h has them.
struct LaunchAttribute {
    int id;
    char padding[4];
    union {
        int flag;
        uint64_t bytes[8];
    } value;
};
struct LaunchConfig {
    unsigned grid[3], block[3];
    unsigned shared_bytes;
    void *stream;
    LaunchAttribute *attributes;
    unsigned attribute_count;
};
constexpr int PROGRAMMATIC_STREAM_SERIALIZATION = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

// The functions of the driver that a launch needs. Each returns a CUresult, of which 0 is success.
struct Driver {
    int (*current_context)(void **context) = nullptr;
    int (*current_device)(int *device) = nullptr;
    int (*push_context)(void *context) = nullptr;
    int (*pop_context)(void **context) = nullptr;
    int (*launch)(const LaunchConfig *config, void *kernel, void **arguments, void **extra) = nullptr;
    int (*exchange_capture_mode)(int *mode) = nullptr;
    int (*error_name)(int result, const char **name) = nullptr;

    // Find the functions in the driver's library. Nothing is initialised by that, so a process may still
    // fork.
    static Driver open(const char *library) {
        void *handle = dlopen(library, RTLD_NOW);
        if (handle == nullptr) throw std::runtime_error(dlerror());
        Driver driver;
        const auto find = [&](auto &function, const char *name) {
            function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
            if (function == nullptr) throw std::runtime_error(std::string(library) + " has no " + name);
        };
        find(driver.current_context, "cuCtxGetCurrent");
        find(driver.current_device, "cuCtxGetDevice");
        find(driver.push_context, "cuCtxPushCurrent_v2");
        find(driver.pop_context, "cuCtxPopCurrent_v2");
        find(driver.launch, "cuLaunchKernelEx");
        find(driver.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
        find(driver.error_name, "cuGetErrorName");
        return driver;
    }

    std::string name_of(int result) const {
        const char *name = nullptr;
        return error_name(result, &name) == 0 && name != nullptr ? name
                                                                 : "CUDA error " + std::to_string(result);
    }
};

// Makes a context of a device current while it lives. A context of the device that is current already stays,
// because it may be a green context, in which stream 0 is another stream than in the primary one.
class ContextGuard {
public:
    ContextGuard(const Driver &driver, void *primary, int device) : driver_(driver) {
        void *current = nullptr;
        if (driver.current_context(&current) == 0 && current == primary) return;
        int its_device = -1;
        if (current != nullptr && driver.current_device(&its_device) == 0 && its_device == device) return;
        const int result = driver.push_context(primary);
        if (result != 0)
            throw std::runtime_error("making a device current failed: " + driver.name_of(result));
        pushed_ = true;
    }
    ~ContextGuard() {
        void *popped = nullptr;
        if (pushed_) driver_.pop_context(&popped);
    }
    ContextGuard(const ContextGuard &) = delete;
    ContextGuard &operator=(const ContextGuard &) = delete;

private:
    const Driver &driver_;
    bool pushed_ = false;
};

// While it lives, this thread may allocate although another one captures in CUDA's default mode, which would
// else end that capture.
class RelaxedCapture {
public:
    explicit RelaxedCapture(const Driver &driver) : driver_(driver) {
        if (driver.exchange_capture_mode != nullptr) driver.exchange_capture_mode(&mode_);
    }
    ~RelaxedCapture() {
        if (driver_.exchange_capture_mode != nullptr) driver_.exchange_capture_mode(&mode_);
    }
    RelaxedCapture(const RelaxedCapture &) = delete;
    RelaxedCapture &operator=(const RelaxedCapture &) = delete;

private:
    const Driver &driver_;
    int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; then that of before
};

// What differs from call to call, as `fastsgemm.call.launches` packs it: the first words of every block of
// arguments.
struct Values {
    enum Base { A, B, C, SPLIT_A, SPLIT_B, SOURCE, WORKSPACE, BASES };  // as `fastsgemm.geometry.matrix.Base`
    uint64_t address[BASES] = {};
    float alpha = 1.0F, beta = 0.0F;
    int32_t steps = 0;  // of k: K, or 0 where A and B are not read
    int32_t unused = 0;
};
static_assert(sizeof(Values) == 72);

// One launch of a plan.
struct Launch {
    std::string name;  // for error messages
    void *kernel;      // a CUkernel, which is launched in whatever context is current
    unsigned grid[3];
    unsigned threads, shared_bytes;
    bool early;      // may begin before the launch before it has ended (programmatic dependent launch)
    unsigned cases;  // bit i: it is launched in case i, see `Plan::case_of`
    std::vector<uint32_t> slots;  // where its arguments lie, in bytes from the beginning of the block
};

// What a product launches. It never changes, so many threads may launch it at a time.
struct Plan {
    static constexpr size_t MOST_ARGUMENTS = 64;  // of a launch
    struct Offset {  // a word of the block that holds an address of the call plus a number of bytes
        uint32_t word, base;
        uint64_t bytes;
    };
    void *context;  // the primary context of its device
    int device;
    int32_t K;
    std::array<int64_t, 6> bounds;  // see `apart`
    std::vector<uint64_t> words;    // the block of arguments; the first are overwritten by `Values`
    std::vector<Offset> offsets;
    std::vector<Launch> launches;
    uint64_t workspace;        // bytes
    unsigned workspace_cases;  // bit i: case i uses the workspace
    unsigned address_bits;     // that A and B may have: tensor maps hold fewer than 64

    static unsigned case_of(const Values &values) {
        return (values.steps != 0 ? 2U : 0U) + (values.beta != 0.0F ? 1U : 0U);
    }
    uint64_t workspace_of(const Values &values) const {
        return (workspace_cases >> case_of(values)) & 1U ? workspace : 0;
    }

    // Set the scalars of a call. A and B are not read where alpha or K is 0: the kernels then get no steps,
    // and the alpha that leaves beta * C as it is, signed zeros included.
    void set_scalars(Values &values, float alpha, float beta) const {
        const bool reads = alpha != 0.0F && K != 0;
        values.alpha = reads ? alpha : (beta != 0.0F ? -0.0F : 0.0F);
        values.beta = beta;
        values.steps = reads ? K : 0;
    }

    // Whether the bytes that are written lie apart from those of A, B and the source.
    bool apart(const Values &values) const {
        const auto within = [&](Values::Base base, size_t i) {
            const auto distance = static_cast<int64_t>(values.address[base] - values.address[Values::C]);
            return bounds[i] < distance && distance < bounds[i + 1];
        };
        return !(within(Values::A, 0) || within(Values::B, 2) || within(Values::SOURCE, 4));
    }

    // Whether A and B lie where the kernels can read them.
    bool can_address(const Values &values) const {
        return (values.address[Values::A] | values.address[Values::B]) >> (address_bits - 1) >> 1 == 0;
    }

    // Launch the kernels on a stream of the plan's device.
    void launch(const Driver &driver, void *stream, const Values &values) const {
        constexpr size_t ON_STACK = 256;
        uint64_t on_stack[ON_STACK];
        std::vector<uint64_t> on_heap(words.size() > ON_STACK ? words.size() : 0);
        uint64_t *block = on_heap.empty() ? on_stack : on_heap.data();
        std::memcpy(block, words.data(), words.size() * sizeof(uint64_t));
        std::memcpy(block, &values, sizeof(values));
        for (const Offset &each : offsets) block[each.word] = values.address[each.base] + each.bytes;

        const ContextGuard guard(driver, context, device);
        LaunchAttribute attribute{PROGRAMMATIC_STREAM_SERIALIZATION, {}, {1}};
        const unsigned now = case_of(values);
        for (const Launch &each : launches) {
            if (((each.cases >> now) & 1U) == 0) continue;
            void *arguments[MOST_ARGUMENTS];
            for (size_t i = 0; i < each.slots.size(); ++i)
                arguments[i] = reinterpret_cast<char *>(block) + each.slots[i];
            LaunchConfig config{
                {each.grid[0], each.grid[1], each.grid[2]}, {each.threads, 1, 1}, each.shared_bytes, stream,
                each.early ? &attribute : nullptr,          each.early ? 1U : 0U};
            const int result = driver.launch(&config, each.kernel, arguments, nullptr);
            if (result != 0) {
                throw std::runtime_error(
                    "launching " + each.name + " with " + std::to_string(each.grid[0]) + " x " +
                    std::to_string(each.grid[1]) + " x " + std::to_string(each.grid[2]) + " blocks of " +
                    std::to_string(each.threads) + " threads failed: " + driver.name_of(result));
            }
        }
    }
};

// What a call has in common with all calls that are decided alike: sizes, strides, types, alignments.
class Key {
public:
    // False for operands of too many dimensions: these take the way through Python.
    bool fits() const { return size_ <= words_.size(); }
    void add(int64_t word) {
        if (size_ < words_.size()) words_[size_] = word;
        ++size_;
    }
    bool operator==(const Key &other) const {
        return size_ == other.size_ &&
               std::memcmp(words_.data(), other.words_.data(), size_ * sizeof(int64_t)) == 0;
    }
    size_t hash() const {
        uint64_t hash = 0x9E3779B97F4A7C15U;
        for (size_t i = 0; i < size_; ++i) {
            hash = (hash ^ static_cast<uint64_t>(words_[i])) * 0xD6E8FEB86659FD93U;
            hash ^= hash >> 32U;
        }
        return hash;
    }

private:
    std::array<int64_t, 56> words_;
    size_t size_ = 0;
};

// What was decided for the calls of one key, and how many there were.
struct Entry {
    int64_t id = 0;                    // Python's number of the decision
    bool passes_on = false;            // to the kernel that was there before
    std::shared_ptr<const Plan> plan;  // null where Python has to be asked each time
    std::vector<int64_t> shape;        // of a new result
    std::atomic<int64_t> calls{0};     // that ended as was decided
    std::atomic<int64_t> tf32{0};      // that were passed on because the program allows TF32

    bool decides_as(const Entry &other) const {
        return id == other.id && passes_on == other.passes_on && plan == other.plan && shape == other.shape;
    }
};

// The entries of one operator. All functions may be called by many threads at a time.
class Table {
public:
    // How often the table was emptied.
    uint64_t epoch() const {
        const std::shared_lock lock(mutex_);
        return epoch_;
    }
    std::shared_ptr<Entry> find(const Key &key) const {
        const std::shared_lock lock(mutex_);
        const auto found = entries_.find(key);
        return found == entries_.end() ? nullptr : found->second;
    }
    // Replace what there was for the key; an entry that says the same stays, and goes on counting. Nothing is
    // inserted if the table was emptied since the given epoch, in which the decision was begun: it may be of
    // settings that hold no more.
    void insert(const Key &key, std::shared_ptr<Entry> entry, uint64_t epoch) {
        const std::unique_lock lock(mutex_);
        if (epoch != epoch_) return;
        auto &place = entries_[key];
        if (place != nullptr && place->decides_as(*entry)) return;
        if (place != nullptr) replaced_.push_back(std::move(place));
        place = std::move(entry);
    }
    // All entries, with those that others have replaced.
    std::vector<std::shared_ptr<Entry>> entries() const {
        const std::shared_lock lock(mutex_);
        return all();
    }
    // Empty the table, and return what it had. A call that is under way may still count in an entry.
    std::vector<std::shared_ptr<Entry>> take() {
        const std::unique_lock lock(mutex_);
        auto taken = all();
        entries_.clear();
        replaced_.clear();
        ++epoch_;
        return taken;
    }
    size_t size() const {
        const std::shared_lock lock(mutex_);
        return entries_.size();
    }

private:
    struct Hash {
        size_t operator()(const Key &key) const { return key.hash(); }
    };
    std::vector<std::shared_ptr<Entry>> all() const {
        auto entries = replaced_;
        for (const auto &each : entries_) entries.push_back(each.second);
        return entries;
    }

    mutable std::shared_mutex mutex_;
    uint64_t epoch_ = 0;
    std::unordered_map<Key, std::shared_ptr<Entry>, Hash> entries_;
    std::vector<std::shared_ptr<Entry>> replaced_;
};

}  // namespace fastsgemm
