// The launcher's kernels in PyTorch's dispatcher.
#include "torch_launcher.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/relu.h>
#include <torch/library.h>

#include <atomic>
#include <bitset>

namespace fastsgemm {
namespace {

using torch::jit::Stack;

Driver driver;
int (*current_stream)(int32_t device, void **stream) = nullptr;  // null: stream 0

// A kernel of the dispatcher before ours, and how it is called.
class Before {
public:
    Before(const c10::OperatorHandle &op, c10::DispatchKey key)
        : op_(op), keys_(key), kernel_(op.getComputedKernelForDispatchKey(key)) {}
    void call(Stack &stack) const { kernel_.callBoxed(op_, keys_, &stack); }

private:
    c10::OperatorHandle op_;
    c10::DispatchKeySet keys_;
    c10::SafeKernelFunction kernel_;
};

// The kernel before ours of one form, which changes while many threads call it.
class SharedBefore {
public:
    std::shared_ptr<const Before> get() const {
        const std::shared_lock lock(mutex_);
        return kernel_;
    }
    // Set another, and return the one before. If it is Python's, destroying it takes Python's lock.
    std::shared_ptr<const Before> exchange(std::shared_ptr<const Before> kernel) {
        const std::unique_lock lock(mutex_);
        return std::exchange(kernel_, std::move(kernel));
    }

private:
    mutable std::shared_mutex mutex_;
    std::shared_ptr<const Before> kernel_;
};
auto &kernels_before = immortal<std::array<SharedBefore, OPERATOR>>();

uint64_t address_of(const Tensor &x) {
    return reinterpret_cast<uint64_t>(x.const_data_ptr());
}

void describe(Key &key, const Tensor &x, uint64_t address) {
    const auto device = x.device();
    key.add((static_cast<int64_t>(device.type()) << 48) | ((device.index() & int64_t{0xFFFF}) << 32) |
            (static_cast<int64_t>(x.scalar_type()) << 16) | (x.dim() << 8) |
            static_cast<int64_t>(address & 15U));
    for (const auto size : x.sizes()) key.add(size);
    for (const auto stride : x.strides()) key.add(stride);
}

bool has_memory(const Tensor &x) {
    return x.numel() == 0 || x.storage().data() != nullptr;
}

// What a program wishes float32 products on CUDA to be computed with.
enum class Wish { FLOAT32, TF32, OTHER };

// By the function that says it, which takes names in PyTorch 2.9 and enumerators in later versions.
Wish read_wish(std::string (at::Context::*precision)(const std::string &, const std::string &) const) {
    const auto wish = (at::globalContext().*precision)("cuda", "matmul");
    return wish == "tf32" ? Wish::TF32 : wish == "ieee" || wish == "none" ? Wish::FLOAT32 : Wish::OTHER;
}
template <typename Precision, typename Backend, typename Operation>
Wish read_wish(Precision (at::Context::*precision)(Backend, Operation) const) {
    switch ((at::globalContext().*precision)(Backend::CUDA, Operation::MATMUL)) {
        case Precision::TF32:
            return Wish::TF32;
        case Precision::IEEE:
        case Precision::NONE:
            return Wish::FLOAT32;
        default:
            return Wish::OTHER;
    }
}

// A number rounded to float32; false where Python has to say what is wrong with it.
bool round_scalar(const Scalar *given, float usual, float &rounded) {
    if (given == nullptr) {
        rounded = usual;
        return true;
    }
    if (!(given->isFloatingPoint() || given->isIntegral(true))) return false;
    const double number = given->toDouble();
    rounded = static_cast<float>(number);
    return std::isinf(rounded) == std::isinf(number);
}

}  // namespace

Operands::Operands(const Call &call) {
    const auto a = address_of(call.a), b = address_of(call.b);
    key.add(call.request());
    key.add((a == b ? 1 : 0) | (call.c != nullptr ? 2 : 0) | (call.out != nullptr ? 4 : 0));
    describe(key, call.a, a);
    describe(key, call.b, b);
    values.address[Values::A] = a;
    values.address[Values::B] = b;
    have_memory = has_memory(call.a) && has_memory(call.b);
    for (const auto &[tensor, base] : {std::pair(call.c, Values::SOURCE), std::pair(call.out, Values::C)}) {
        if (tensor == nullptr) continue;
        values.address[base] = address_of(*tensor);
        describe(key, *tensor, values.address[base]);
        have_memory = have_memory && has_memory(*tensor);
    }
    if (call.c != nullptr && call.out != nullptr)
        key.add(values.address[Values::SOURCE] == values.address[Values::C] ? 1 : 0);
}

std::optional<Tensor> launch(const Entry &entry, const Call &call, Operands &operands) {
    const Plan &plan = *entry.plan;
    Values &values = operands.values;
    float alpha = 1.0F, beta = 0.0F;
    if (!operands.have_memory || !plan.can_address(values)) return std::nullopt;
    if (!round_scalar(call.alpha, 1.0F, alpha)) return std::nullopt;
    if (!round_scalar(call.beta, call.c == nullptr ? 0.0F : 1.0F, beta)) return std::nullopt;
    plan.set_scalars(values, alpha, beta);
    const auto options = at::TensorOptions().device(call.a.device());
    Tensor result;
    if (call.out != nullptr) {
        result = *call.out;
        if (call.c == nullptr) values.address[Values::SOURCE] = values.address[Values::C];
        result.mutable_data_ptr();  // a copy-on-write tensor gets memory of its own
        if (address_of(result) != values.address[Values::C]) return std::nullopt;
        if (!plan.apart(values)) return std::nullopt;
    } else {
        result = at::empty(entry.shape, options.dtype(call.of_halves.value_or(at::kFloat)));
        values.address[Values::C] = address_of(result);
        if ((values.address[Values::C] & 15U) != 0) return std::nullopt;
        if (call.c == nullptr) values.address[Values::SOURCE] = values.address[Values::C];
    }
    void *stream = nullptr;
    if (current_stream != nullptr && current_stream(plan.device, &stream) != 0)
        throw std::runtime_error("PyTorch did not say which stream is current");
    // PyTorch's allocator gives it to nobody else before this stream has passed the launches.
    Tensor workspace;
    if (const auto bytes = plan.workspace_of(values)) {
        const RelaxedCapture relaxed(driver);
        workspace = at::empty({static_cast<int64_t>(bytes)}, options.dtype(at::kByte));
        values.address[Values::WORKSPACE] = address_of(workspace);
    }
    plan.launch(driver, stream, values);
    return result;
}

// Python empties the tables of the switch itself, after it has counted their calls.
void insert(Form form, const Key &key, std::shared_ptr<Entry> entry, uint64_t epoch) {
    constexpr size_t MOST_ENTRIES = 16384;
    if (form >= OPERATOR && tables[form].size() >= MOST_ENTRIES) tables[form].take();
    tables[form].insert(key, std::move(entry), epoch);
}

namespace {

// Whether products of 16-bit factors are replaced whose result has their type.
std::atomic<bool> rounds = false;

bool is_half(const Tensor &x) {
    return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

// Multiply as was decided for operands like these. Empty: the kernel before ours is due.
std::optional<Tensor> multiply(Form form, Call call) {
    if (rounds && !call.of_halves && is_half(call.a)) call.of_halves = call.a.scalar_type();
    const auto is_usual = [&](const Tensor &x) {
        return call.of_halves ? is_half(x) : x.scalar_type() == at::kFloat;
    };
    if (!(is_usual(call.a) && is_usual(call.b))) {
        Key key;  // of the types alone, so that a table holds few of them
        key.add((call.request() << 32) | (static_cast<int64_t>(call.a.scalar_type()) << 16) |
                static_cast<int64_t>(call.b.scalar_type()));
        if (const auto entry = tables[form].find(key)) {
            ++entry->calls;
            return std::nullopt;
        }
        return ask_python(form, call, key);
    }
    Operands operands(call);
    const auto entry = operands.key.fits() ? tables[form].find(operands.key) : nullptr;
    if (entry != nullptr && entry->passes_on) {
        ++entry->calls;
        return std::nullopt;
    }
    if (entry != nullptr) {
        const Wish wish =
            call.of_halves || !call.a.is_cuda() ? Wish::FLOAT32 : read_wish(&at::Context::float32Precision);
        if (wish == Wish::TF32) {
            ++entry->tf32;
            return std::nullopt;
        }
        if (wish == Wish::FLOAT32 && entry->plan != nullptr) {
            if (auto result = launch(*entry, call, operands)) {
                ++entry->calls;
                return result;
            }
        }
    }
    return ask_python(form, call, operands.key);
}

// Call the kernel that was there before ours with these arguments, of which one is on the device.
void call_before(Form form, at::Device device, Stack &stack) {
    thread_local std::bitset<128> prepared;  // one for each device
    if (device.is_cuda() && !prepared[device.index()]) {
        prepared.set(device.index());
        prepare_to_pass_on(device.index());
    }
    try {
        kernels_before[form].get()->call(stack);
    } catch (const c10::Error &error) {  // its owner has taken it back, and nothing was done
        if (std::strstr(error.what(), "SafeKernelFunction has been invalidated") == nullptr) throw;
        renew_switch();
        kernels_before[form].get()->call(stack);
    }
}

template <typename... Arguments>
Tensor pass_on(Form form, const Tensor &first, const Arguments &...others) {
    Stack stack;
    stack.reserve(1 + sizeof...(Arguments));
    stack.emplace_back(first);
    (stack.emplace_back(others), ...);
    call_before(form, first.device(), stack);
    return stack[0].toTensor();
}

// The kernels, by what their operator takes. FORM is the number of a form.

template <Form FORM>
Tensor product(const Tensor &a, const Tensor &b) {
    auto result = multiply(FORM, {a, b});
    return result ? *std::move(result) : pass_on(FORM, a, b);
}

template <Form FORM>
Tensor &product_out(const Tensor &a, const Tensor &b, Tensor &out) {
    if (!multiply(FORM, {.a = a, .b = b, .out = &out})) pass_on(FORM, a, b, out);
    return out;
}

template <Form FORM>
Tensor product_dtype(const Tensor &a, const Tensor &b, at::ScalarType type) {
    auto result = multiply(FORM, {.a = a, .b = b, .of_halves = type});
    return result ? *std::move(result) : pass_on(FORM, a, b, type);
}

template <Form FORM>
Tensor &product_dtype_out(const Tensor &a, const Tensor &b, at::ScalarType type, Tensor &out) {
    const Call call{.a = a, .b = b, .out = &out, .of_halves = type};
    if (!multiply(FORM, call)) pass_on(FORM, a, b, type, out);
    return out;
}

template <Form FORM>
Tensor sum(const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha) {
    auto result = multiply(FORM, {.a = a, .b = b, .c = &c, .beta = &beta, .alpha = &alpha});
    return result ? *std::move(result) : pass_on(FORM, c, a, b, beta, alpha);
}

template <Form FORM>
Tensor &sum_out(const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha,
                Tensor &out) {
    const Call call{.a = a, .b = b, .c = &c, .out = &out, .beta = &beta, .alpha = &alpha};
    if (!multiply(FORM, call)) pass_on(FORM, c, a, b, beta, alpha, out);
    return out;
}

template <Form FORM>
Tensor &sum_in_place(Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta, const Scalar &alpha) {
    const Call call{.a = a, .b = b, .c = &c, .out = &c, .beta = &beta, .alpha = &alpha};
    if (!multiply(FORM, call)) pass_on(FORM, c, a, b, beta, alpha);
    return c;
}

template <Form FORM>
Tensor sum_dtype(const Tensor &c, const Tensor &a, const Tensor &b, at::ScalarType type, const Scalar &beta,
                 const Scalar &alpha) {
    const Call call{.a = a, .b = b, .c = &c, .beta = &beta, .alpha = &alpha, .of_halves = type};
    auto result = multiply(FORM, call);
    return result ? *std::move(result) : pass_on(FORM, c, a, b, type, beta, alpha);
}

template <Form FORM>
Tensor &sum_dtype_out(const Tensor &c, const Tensor &a, const Tensor &b, at::ScalarType type,
                      const Scalar &beta, const Scalar &alpha, Tensor &out) {
    const Call call{.a = a, .b = b, .c = &c, .out = &out, .beta = &beta, .alpha = &alpha, .of_halves = type};
    if (!multiply(FORM, call)) pass_on(FORM, c, a, b, type, beta, alpha, out);
    return out;
}

void activate(Tensor &x, bool gelu) {
    if (!gelu) {
        at::relu_(x);
    } else {
        at::gelu_(x, x.is_cuda() ? "tanh" : "none");  // as the kernel of PyTorch for this device does
    }
}

Tensor addmm_activation(const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta,
                        const Scalar &alpha, bool gelu) {
    auto result = multiply(ADDMM_ACTIVATION, {.a = a, .b = b, .c = &c, .beta = &beta, .alpha = &alpha});
    if (!result) return pass_on(ADDMM_ACTIVATION, c, a, b, beta, alpha, gelu);
    activate(*result, gelu);
    return *std::move(result);
}

Tensor &addmm_activation_out(const Tensor &c, const Tensor &a, const Tensor &b, const Scalar &beta,
                             const Scalar &alpha, bool gelu, Tensor &out) {
    const Call call{.a = a, .b = b, .c = &c, .out = &out, .beta = &beta, .alpha = &alpha};
    if (multiply(ADDMM_ACTIVATION_OUT, call))
        activate(out, gelu);
    else
        pass_on(ADDMM_ACTIVATION_OUT, c, a, b, beta, alpha, gelu, out);
    return out;
}

template <auto FUNCTION>
void add(torch::Library &library, const char *name) {
    library.impl(name, TORCH_FN(FUNCTION));
}

// What registers the kernel of a form of the switch.
// clang-format off
void (*const add_kernel[OPERATOR])(torch::Library &library, const char *name) = {
    add<product<MM>>, add<product_out<MM_OUT>>, add<product_dtype<MM_DTYPE>>, add<product_dtype_out<MM_DTYPE_OUT>>,
    add<product<BMM>>, add<product_out<BMM_OUT>>, add<product_dtype<BMM_DTYPE>>, add<product_dtype_out<BMM_DTYPE_OUT>>,
    add<product<DOT>>,
    add<sum<ADDMM>>, add<sum_out<ADDMM_OUT>>, add<sum_in_place<ADDMM_>>, add<sum_dtype<ADDMM_DTYPE>>,
    add<sum_dtype_out<ADDMM_DTYPE_OUT>>, add<addmm_activation>, add<addmm_activation_out>,
    add<sum<BADDBMM>>, add<sum_out<BADDBMM_OUT>>, add<sum_in_place<BADDBMM_>>, add<sum_dtype<BADDBMM_DTYPE>>,
    add<sum_dtype_out<BADDBMM_DTYPE_OUT>>, add<sum<ADDMV>>, add<sum_out<ADDMV_OUT>>, add<sum_in_place<ADDMV_>>,
};
// clang-format on

// The kernels of torch.ops.fastsgemm.sgemm. Python's own are below them, and do what is unusual.

auto &autograd_before = immortal<std::shared_ptr<const Before>>();

// A number for the options of the operator, or 0 for a precision that Python has to refuse.
int64_t number_of(std::optional<std::string_view> precision, bool batch_invariant, bool symmetric) {
    const int64_t which = !precision ? 1 : *precision == "ieee" ? 2 : *precision == "fp16x3" ? 3 : 0;
    return which == 0 ? 0 : which | (batch_invariant ? 4 : 0) | (symmetric ? 8 : 0);
}

Tensor sgemm(const Tensor &a, const Tensor &b, const Scalar &alpha, const Scalar &beta,
             const std::optional<Tensor> &c, std::optional<std::string_view> precision, bool batch_invariant,
             bool symmetric) {
    const auto request = number_of(precision, batch_invariant, symmetric);
    const bool adds = c && !beta.equal(0);  // else C is not read
    const Call call{
        .a = a, .b = b, .c = adds ? &*c : nullptr, .beta = &beta, .alpha = &alpha, .options = request};
    Operands operands(call);
    if (request != 0 && operands.key.fits() && (adds || !c)) {
        if (const auto entry = tables[OPERATOR].find(operands.key);
            entry != nullptr && entry->plan != nullptr)
            if (auto result = launch(*entry, call, operands)) return *std::move(result);
    }
    const OperatorOptions options{precision, batch_invariant, symmetric, c ? &*c : nullptr};
    auto result = ask_python(OPERATOR, call, operands.key, &options);
    TORCH_CHECK(result, "fastsgemm::sgemm returned no tensor");
    return *std::move(result);
}

// Whether Python's kernel of the operator has to see an operand: its gradient is recorded, or it is of a
// subclass, such as a DTensor.
bool is_for_python(const Tensor &x) {
    return is_recorded(x) || x.key_set().has(c10::DispatchKey::Python);
}

// Go on below autograd where Python has nothing to do.
Tensor sgemm_with_gradient(const Tensor &a, const Tensor &b, const Scalar &alpha, const Scalar &beta,
                           const std::optional<Tensor> &c, std::optional<std::string_view> precision,
                           bool batch_invariant, bool symmetric) {
    if (is_for_python(a) || is_for_python(b) || (c && is_for_python(*c))) {
        const auto text = precision ? c10::IValue(std::string(*precision)) : c10::IValue();
        Stack stack{a, b, alpha, beta, c, text, batch_invariant, symmetric};
        autograd_before->call(stack);
        return stack[0].toTensor();
    }
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("fastsgemm::sgemm", "").typed<decltype(sgemm)>();
    const at::AutoDispatchBelowAutograd below;
    return op.call(a, b, alpha, beta, c, precision, batch_invariant, symmetric);
}

// Registering an operator's second kernel makes PyTorch warn, which is no news to who turned the switch on.
struct Silent : c10::WarningHandler {
    void process(const c10::Warning & /*warning*/) override {}
};

c10::OperatorHandle operator_of(const std::string &name) {
    const auto dot = name.find('.');
    return c10::Dispatcher::singleton().findSchemaOrThrow(
        ("aten::" + name.substr(0, dot)).c_str(),
        dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

// The kernels of the switch, by their form, while it is on.
auto &registered = immortal<std::array<std::unique_ptr<torch::Library>, OPERATOR>>();
c10::DispatchKey registered_key = c10::DispatchKey::Undefined;
std::mutex registering;

// Register the kernel of a form, above the one that is there.
std::unique_ptr<torch::Library> add_form(Form form, c10::DispatchKey key) {
    Silent silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    add_kernel[form](*library, NAMES[form]);
    return library;
}

// Keep the kernel that is there, and return the one that was kept so far.
std::shared_ptr<const Before> keep(Form form, c10::DispatchKey key) {
    return kernels_before[form].exchange(std::make_shared<const Before>(operator_of(NAMES[form]), key));
}
}  // namespace

void register_switch(const std::vector<Form> &forms, c10::DispatchKey key, bool with_rounding) {
    // Destroyed after the lock is released, because destroying a kernel of Python's takes the GIL.
    std::vector<std::shared_ptr<const Before>> kept;
    const std::lock_guard lock(registering);
    std::array<std::unique_ptr<torch::Library>, OPERATOR> fresh;
    for (const auto form : forms) {
        if (registered[form] == nullptr) kept.push_back(keep(form, key));
        fresh[form] = add_form(form, key);
    }
    registered = std::move(fresh);  // the old ones are taken back only now, so that no call is missed
    registered_key = key;
    rounds = with_rounding;
}

void unregister_switch() {
    const std::lock_guard lock(registering);
    for (auto &each : registered) each.reset();
}

void register_operator() {
    static auto &libraries = immortal<std::vector<std::unique_ptr<torch::Library>>>();
    if (!libraries.empty()) return;
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("fastsgemm::sgemm", "");
    autograd_before = std::make_shared<const Before>(op, c10::DispatchKey::AutogradCUDA);
    Silent silent;
    const c10::WarningUtils::WarningHandlerGuard guard(&silent);
    const auto add = [](c10::DispatchKey key, auto function) {
        libraries.push_back(
            std::make_unique<torch::Library>(torch::Library::IMPL, "fastsgemm", key, __FILE__, __LINE__));
        libraries.back()->impl("sgemm", function);
    };
    add(c10::DispatchKey::CUDA, TORCH_FN(sgemm));
    add(c10::DispatchKey::Autograd, TORCH_FN(sgemm_with_gradient));
}

void connect(const char *cuda, const char *torch_cuda) {
    if (cuda != nullptr) driver = Driver::open(cuda);
    current_stream = nullptr;
    if (torch_cuda == nullptr) return;
    constexpr auto NAME = "aoti_torch_get_current_cuda_stream";
    void *library = dlopen(torch_cuda, RTLD_NOW | RTLD_NOLOAD);
    void *function = library == nullptr ? nullptr : dlsym(library, NAME);
    TORCH_CHECK(function != nullptr, torch_cuda, " has no ", NAME);
    current_stream = reinterpret_cast<decltype(current_stream)>(function);
}

}  // namespace fastsgemm
