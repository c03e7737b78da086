// The module of the launcher that Python imports, and what the launcher asks of Python.
#include <Python.h>

#include "torch_launcher.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

namespace fastsgemm {
namespace {

PyObject *miss = nullptr;     // fastsgemm.torch.cpp_launcher.miss
PyObject *prepare = nullptr;  // fastsgemm.torch.execution.prepare_to_pass_on
PyObject *renew = nullptr;    // fastsgemm.torch.cpp_launcher._renew

// Holds Python's lock while it lives.
class Gil {
public:
    Gil() : state_(PyGILState_Ensure()) {}
    ~Gil() { PyGILState_Release(state_); }
    Gil(const Gil &) = delete;
    Gil &operator=(const Gil &) = delete;

private:
    PyGILState_STATE state_;
};

// A reference to a Python object that is given back at the end.
struct Drop {
    void operator()(PyObject *object) const { Py_XDECREF(object); }
};
using Reference = std::unique_ptr<PyObject, Drop>;

[[noreturn]] void throw_python_error() {
    python_error error;
    error.persist();
    throw error;
}

PyObject *wrap(const Tensor *x) {
    if (x == nullptr) Py_RETURN_NONE;
    return THPVariable_Wrap(*x);
}

PyObject *wrap(const Scalar *x) {
    if (x == nullptr) Py_RETURN_NONE;
    if (x->isComplex())
        return PyComplex_FromDoubles(x->toComplexDouble().real(), x->toComplexDouble().imag());
    if (x->isFloatingPoint()) return PyFloat_FromDouble(x->toDouble());
    return x->isBoolean() ? PyBool_FromLong(x->toBool()) : PyLong_FromLongLong(x->toLong());
}

constexpr const char *PLAN = "fastsgemm.plan";  // of capsules

// Read (id, passes_on, plan or None, shape or None), which Python says of a key.
std::shared_ptr<Entry> entry_of(PyObject *lesson) {
    auto entry = std::make_shared<Entry>();
    PyObject *plan = nullptr, *shape = nullptr;
    long long id = 0;
    int passes_on = 0;
    if (!PyArg_ParseTuple(lesson, "LpOO", &id, &passes_on, &plan, &shape)) throw_python_error();
    entry->id = id;
    entry->passes_on = passes_on != 0;
    if (plan != Py_None) {
        const auto *held = static_cast<std::shared_ptr<const Plan> *>(PyCapsule_GetPointer(plan, PLAN));
        if (held == nullptr) throw_python_error();
        entry->plan = *held;
    }
    if (shape != Py_None) {
        for (Py_ssize_t i = 0; i < PySequence_Size(shape); ++i) {
            const Reference extent(PySequence_GetItem(shape, i));
            entry->shape.push_back(extent == nullptr ? -1 : PyLong_AsLongLong(extent.get()));
        }
        if (PyErr_Occurred() != nullptr) throw_python_error();
    }
    return entry;
}

}  // namespace

std::optional<Tensor> ask_python(Form form, const Call &call, const Key &key,
                                 const OperatorOptions *options) {
    const auto epoch = tables[form].epoch();  // before Python decides by what it has now
    const Gil gil;
    Reference extra(Py_NewRef(Py_None));
    if (call.of_halves) {
        extra.reset(Py_NewRef(reinterpret_cast<PyObject *>(torch::getTHPDtype(*call.of_halves))));
    } else if (options != nullptr) {
        const auto precision = options->precision ? std::string(*options->precision) : std::string();
        extra.reset(Py_BuildValue("(zOON)", options->precision ? precision.c_str() : nullptr,
                                  options->batch_invariant ? Py_True : Py_False,
                                  options->symmetric ? Py_True : Py_False, wrap(options->c)));
    }
    const Reference operands[] = {
        Reference(PyLong_FromLong(form)), Reference(wrap(&call.a)),  Reference(wrap(&call.b)),
        Reference(wrap(call.c)),          Reference(wrap(call.out)), Reference(wrap(call.alpha)),
        Reference(wrap(call.beta)),       std::move(extra),
    };
    PyObject *arguments[std::size(operands)];
    for (size_t i = 0; i < std::size(operands); ++i) {
        if (operands[i] == nullptr) throw_python_error();
        arguments[i] = operands[i].get();
    }
    const Reference answer(PyObject_Vectorcall(miss, arguments, std::size(arguments), nullptr));
    PyObject *result = nullptr, *lesson = nullptr;
    if (answer == nullptr || !PyArg_ParseTuple(answer.get(), "OO", &result, &lesson)) throw_python_error();
    if (lesson != Py_None && key.fits()) insert(form, key, entry_of(lesson), epoch);
    if (result == Py_None) return std::nullopt;
    return THPVariable_Unpack(result);
}

void prepare_to_pass_on(int device) {
    const Gil gil;
    const Reference answer(PyObject_CallFunction(prepare, "i", device));
    if (answer == nullptr) throw_python_error();
}

void renew_switch() {
    const Gil gil;
    const Reference answer(PyObject_CallNoArgs(renew));
    if (answer == nullptr) throw_python_error();
}

namespace {

// fastsgemm.sgemm with tensors.

// Whether PyTorch would call its CUDA kernel at once: there is no gradient, subclass, lazy sign or transform.
bool is_plain(PyObject *x) {
    static const c10::DispatchKeySet plain({c10::DispatchKey::CPU, c10::DispatchKey::CUDA,
                                            c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA,
                                            c10::DispatchKey::AutocastCPU, c10::DispatchKey::AutocastCUDA,
                                            c10::DispatchKey::ADInplaceOrView});
    if (!THPVariable_CheckExact(x)) return false;
    const Tensor &tensor = THPVariable_Unpack(x);
    return (tensor.key_set() - plain).highestFunctionalityKey() == c10::DispatchKey::Undefined &&
           !is_recorded(tensor);
}

// Read request, A, B and C. Empty: they are not plain tensors, or a mode or transform of PyTorch has to see
// the call.
std::optional<Call> read_call(PyObject *const *given) {
    const auto active = c10::impl::tls_local_dispatch_key_set().included_ - c10::default_included_set;
    if (active.highestFunctionalityKey() != c10::DispatchKey::Undefined) return std::nullopt;
    if (!is_plain(given[1]) || !is_plain(given[2]) || !(given[3] == Py_None || is_plain(given[3])))
        return std::nullopt;
    const Tensor *c = given[3] == Py_None ? nullptr : &THPVariable_Unpack(given[3]);
    return Call{
        .a = THPVariable_Unpack(given[1]),
        .b = THPVariable_Unpack(given[2]),
        .c = c,
        .out = c,
        .options = reinterpret_cast<int64_t>(given[0])};  // requests that a table holds live as long as it
}

// The functions of the Python module.

// Turn C++'s exceptions into Python's.
template <typename Function>
PyObject *guarded(Function function) {
    HANDLE_TH_ERRORS
    return function();
    END_HANDLE_TH_ERRORS
}

PyObject *multiply_known(PyObject * /*module*/, PyObject *const *given, Py_ssize_t count) {
    return guarded([&]() -> PyObject * {
        TORCH_CHECK_TYPE(count == 6, "sgemm takes request, A, B, C, alpha and beta");
        if (!PyFloat_CheckExact(given[4]) || !PyFloat_CheckExact(given[5])) Py_RETURN_NONE;
        auto call = read_call(given);
        if (!call) Py_RETURN_NONE;
        const Scalar alpha(PyFloat_AS_DOUBLE(given[4])), beta(PyFloat_AS_DOUBLE(given[5]));
        call->alpha = &alpha;
        call->beta = &beta;
        std::optional<Tensor> result;
        {
            const pybind11::gil_scoped_release released;
            Operands operands(*call);
            const auto entry = operands.key.fits() ? tables[DIRECT].find(operands.key) : nullptr;
            if (entry != nullptr) result = launch(*entry, *call, operands);
        }
        if (!result) Py_RETURN_NONE;
        if (call->out == nullptr) return THPVariable_Wrap(*std::move(result));
        if (!result->is_inference()) result->unsafeGetTensorImpl()->bump_version();
        return Py_NewRef(given[3]);
    });
}

PyObject *learn(PyObject * /*module*/, PyObject *const *given, Py_ssize_t count) {
    return guarded([&]() -> PyObject * {
        TORCH_CHECK_TYPE(count == 6, "learn takes request, A, B, C, what is to be done and an epoch");
        if (const auto call = read_call(given)) {
            const Operands operands(*call);
            const auto epoch = PyLong_AsUnsignedLongLong(given[5]);
            if (PyErr_Occurred() != nullptr) throw_python_error();
            if (operands.key.fits()) {
                Py_INCREF(given[0]);  // its address is in the key
                insert(DIRECT, operands.key, entry_of(given[4]), epoch);
            }
        }
        Py_RETURN_NONE;
    });
}

// Return the epoch in which a decision about fastsgemm.sgemm begins, see `insert`.
PyObject *epoch(PyObject * /*module*/, PyObject * /*none*/) {
    return PyLong_FromUnsignedLongLong(tables[DIRECT].epoch());
}

PyObject *make_plan(PyObject * /*module*/, PyObject *arguments) {
    return guarded([&]() -> PyObject * {
        auto plan = std::make_unique<Plan>();
        unsigned long long context = 0, workspace = 0;
        PyObject *words = nullptr, *offsets = nullptr, *launches = nullptr;
        auto &bounds = plan->bounds;
        static_assert(sizeof(long long) == sizeof(int64_t));
        long long limits[6];
        if (!PyArg_ParseTuple(arguments, "Kii(LLLLLL)O!O!O!KII", &context, &plan->device, &plan->K,
                              &limits[0], &limits[1], &limits[2], &limits[3], &limits[4], &limits[5],
                              &PyList_Type, &words, &PyList_Type, &offsets, &PyList_Type, &launches,
                              &workspace, &plan->workspace_cases, &plan->address_bits))
            throw_python_error();
        std::copy(std::begin(limits), std::end(limits), bounds.begin());
        plan->context = reinterpret_cast<void *>(context);
        plan->workspace = workspace;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(words); ++i)
            plan->words.push_back(PyLong_AsUnsignedLongLongMask(PyList_GET_ITEM(words, i)));
        TORCH_CHECK(plan->words.size() * sizeof(uint64_t) >= sizeof(Values),
                    "the block has no room for what differs from call to call");
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(offsets); ++i) {
            Plan::Offset offset{};
            unsigned long long bytes = 0;
            if (!PyArg_ParseTuple(PyList_GET_ITEM(offsets, i), "IIK", &offset.word, &offset.base, &bytes))
                throw_python_error();
            TORCH_CHECK(offset.word < plan->words.size() && offset.base < Values::BASES,
                        "an offset lies outside the block");
            offset.bytes = bytes;
            plan->offsets.push_back(offset);
        }
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(launches); ++i) {
            Launch each{};
            const char *name = nullptr;
            unsigned long long kernel = 0;
            int early = 0;
            PyObject *slots = nullptr;
            if (!PyArg_ParseTuple(PyList_GET_ITEM(launches, i), "sK(III)IIpIO!", &name, &kernel,
                                  &each.grid[0], &each.grid[1], &each.grid[2], &each.threads,
                                  &each.shared_bytes, &early, &each.cases, &PyList_Type, &slots))
                throw_python_error();
            each.name = name;
            each.kernel = reinterpret_cast<void *>(kernel);
            each.early = early != 0;
            for (Py_ssize_t j = 0; j < PyList_GET_SIZE(slots); ++j) {
                const auto slot = PyLong_AsUnsignedLong(PyList_GET_ITEM(slots, j));
                TORCH_CHECK(slot < plan->words.size() * sizeof(uint64_t),
                            "an argument lies outside the block");
                each.slots.push_back(static_cast<uint32_t>(slot));
            }
            TORCH_CHECK(each.slots.size() <= Plan::MOST_ARGUMENTS, each.name, " has too many arguments");
            plan->launches.push_back(std::move(each));
        }
        if (PyErr_Occurred() != nullptr) throw_python_error();
        auto held = std::make_unique<std::shared_ptr<const Plan>>(std::move(plan));
        PyObject *capsule = PyCapsule_New(held.get(), PLAN, [](PyObject *released) {
            delete static_cast<std::shared_ptr<const Plan> *>(PyCapsule_GetPointer(released, PLAN));
        });
        if (capsule != nullptr) held.release();
        return capsule;
    });
}

PyObject *on(PyObject * /*module*/, PyObject *arguments) {
    return guarded([&]() -> PyObject * {
        PyObject *numbers = nullptr;
        const char *name = nullptr;
        int rounds = 0;
        if (!PyArg_ParseTuple(arguments, "O!sp", &PyList_Type, &numbers, &name, &rounds))
            throw_python_error();
        std::vector<Form> forms;
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(numbers); ++i) {
            const auto form = PyLong_AsLong(PyList_GET_ITEM(numbers, i));
            TORCH_CHECK(form >= 0 && form < OPERATOR, "there is no form ", form);
            forms.push_back(static_cast<Form>(form));
        }
        const auto key = c10::parseDispatchKey(name);
        {
            const pybind11::gil_scoped_release released;
            register_switch(forms, key, rounds != 0);
        }
        Py_RETURN_NONE;
    });
}

PyObject *off(PyObject * /*module*/, PyObject * /*none*/) {
    return guarded([]() -> PyObject * {
        {
            const pybind11::gil_scoped_release released;
            unregister_switch();
        }
        Py_RETURN_NONE;
    });
}

// Return [(id, calls, calls passed on because of TF32)] of a form, and forget its entries if asked to.
PyObject *counts(PyObject * /*module*/, PyObject *arguments) {
    return guarded([&]() -> PyObject * {
        int form = 0, forget = 0;
        if (!PyArg_ParseTuple(arguments, "ip", &form, &forget)) throw_python_error();
        TORCH_CHECK(form >= 0 && form < FORMS, "there is no form ", form);
        const auto entries = forget != 0 ? tables[form].take() : tables[form].entries();
        Reference list(PyList_New(0));
        for (const auto &each : entries) {
            const Reference item(Py_BuildValue("(LLL)", static_cast<long long>(each->id),
                                               static_cast<long long>(each->calls.exchange(0)),
                                               static_cast<long long>(each->tf32.exchange(0))));
            if (list == nullptr || item == nullptr || PyList_Append(list.get(), item.get()) != 0)
                throw_python_error();
        }
        return list.release();
    });
}

// Find the driver and PyTorch's streams, and remember whom to ask.
PyObject *set_up(PyObject * /*module*/, PyObject *arguments) {
    return guarded([&]() -> PyObject * {
        const char *cuda = nullptr, *torch_cuda = nullptr;
        PyObject *asked = nullptr, *prepares = nullptr, *renews = nullptr;
        if (!PyArg_ParseTuple(arguments, "zzOOO", &cuda, &torch_cuda, &asked, &prepares, &renews))
            throw_python_error();
        connect(cuda, torch_cuda);
        miss = Py_NewRef(asked);  // for as long as the process lives
        prepare = Py_NewRef(prepares);
        renew = Py_NewRef(renews);
        Py_RETURN_NONE;
    });
}

PyObject *take_operator(PyObject * /*module*/, PyObject * /*none*/) {
    return guarded([]() -> PyObject * {
        {
            const pybind11::gil_scoped_release released;
            register_operator();
        }
        Py_RETURN_NONE;
    });
}

PyMethodDef methods[] = {
    {"sgemm", reinterpret_cast<PyCFunction>(reinterpret_cast<void *>(multiply_known)), METH_FASTCALL,
     nullptr},
    {"learn", reinterpret_cast<PyCFunction>(reinterpret_cast<void *>(learn)), METH_FASTCALL, nullptr},
    {"epoch", epoch, METH_NOARGS, nullptr},
    {"plan", make_plan, METH_VARARGS, nullptr},
    {"on", on, METH_VARARGS, nullptr},
    {"off", off, METH_NOARGS, nullptr},
    {"counts", counts, METH_VARARGS, nullptr},
    {"set_up", set_up, METH_VARARGS, nullptr},
    {"take_operator", take_operator, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "fastsgemm_launcher", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};
}  // namespace
}  // namespace fastsgemm

extern "C" __attribute__((visibility("default"))) PyObject *PyInit_fastsgemm_launcher() {
    PyObject *module = PyModule_Create(&fastsgemm::definition);
    if (module == nullptr) return nullptr;
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    const fastsgemm::Reference names(PyTuple_New(fastsgemm::FORMS));
    for (int i = 0; names != nullptr && i < fastsgemm::FORMS; ++i)
        PyTuple_SET_ITEM(names.get(), i, PyUnicode_FromString(fastsgemm::NAMES[i]));
    if (names == nullptr || PyModule_AddObjectRef(module, "FORMS", names.get()) != 0) return nullptr;
    return module;
}
