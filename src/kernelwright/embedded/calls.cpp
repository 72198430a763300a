// A call like one before, without Python in between: is it one, memory, launches, results.
//
// Three types and two functions, which Python uses (memo.py, steps.py, fusion.py):
//
//   Picture    whether everything that hangs on a module is as it was
//   Sequence   the steps of a call, on tensors: memory, kernels in a row, functions of Python
//   Known      the results of a call like one before, or None
//   again      the same, asked of what a module remembers
//   record     from here on, calls are recorded by this function of node.cpp
//
// Headers of torch's Python binding take ten seconds to compile, and these take one; so where in a
// Python object its tensor stands is found out by asking some for their attribute `_cdata`, and one
// function is declared here. Headers of autograd take seven: what needs them is node.cpp, a library
// that is there some time later, or never.
#include <Python.h>
#include <structmember.h>

#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#ifdef KW_CUDA
#include <ATen/cuda/EmptyTensor.h>
#endif

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

PyObject* THPVariable_Wrap(const at::TensorBase& tensor);

namespace {

// ---- Python's objects ---------------------------------------------------------------------------

// A reference that is given back at the end.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object_); }

  static Ref to(PyObject* borrowed) { return Ref(Py_XNewRef(borrowed)); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

struct PythonError {};  // Python's own error is set

Ref checked(PyObject* owned) {
  if (owned == nullptr) throw PythonError();
  return Ref(owned);
}

PyObject* item(PyObject* tuple, Py_ssize_t i) {
  PyObject* found = PyTuple_GetItem(tuple, i);
  if (found == nullptr) throw PythonError();
  return found;
}

int64_t number(PyObject* object) {
  const int64_t found = PyLong_AsLongLong(object);
  if (found == -1 && PyErr_Occurred() != nullptr) throw PythonError();
  return found;
}

std::vector<int64_t> numbers(PyObject* tuple) {
  std::vector<int64_t> found;
  for (Py_ssize_t i = 0; i < PyTuple_Size(tuple); ++i) found.push_back(number(item(tuple, i)));
  return found;
}

Ref called(PyObject* function) {
  return checked(PyObject_CallNoArgs(function));
}

bool is_true(PyObject* object) {
  const int found = PyObject_IsTrue(object);
  if (found < 0) throw PythonError();
  return found != 0;
}

// A type of Python around a C++ body. The body names what it holds to the garbage collector: a
// module holds its Picture, and a Picture the module.
template <class Body>
struct Object {
  PyObject_HEAD vectorcallfunc vectorcall;
  Body* body;

  static Body& of(PyObject* self) { return *reinterpret_cast<Object*>(self)->body; }

  // What throws may be a hook of Python's inside torch, and has said why.
  static void say(const char* why) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, why);
  }

  template <class Function>
  static PyObject* guarded(const Function& function) {
    try {
      return function();
    } catch (const PythonError&) {
    } catch (const c10::Error& error) {
      say(error.what_without_backtrace());
    } catch (const std::exception& error) {
      say(error.what());
    }
    return nullptr;
  }

  static PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
    return guarded([&] {
      auto body = std::make_unique<Body>(args);
      Ref self = checked(type->tp_alloc(type, 0));
      auto* object = reinterpret_cast<Object*>(self.get());
      object->vectorcall = call;
      object->body = body.release();
      return self.release();
    });
  }

  static PyObject* call(PyObject* self, PyObject* const* args, size_t count, PyObject*) {
    return guarded([&] { return of(self).call(args, PyVectorcall_NARGS(count)); });
  }

  static int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    Body* body = reinterpret_cast<Object*>(self)->body;
    return body == nullptr ? 0 : body->visit(visit, arg);
  }

  static int clear(PyObject* self) {
    Body* body = reinterpret_cast<Object*>(self)->body;
    if (body != nullptr) body->release();
    return 0;
  }

  static void dealloc(PyObject* self) {
    PyObject_GC_UnTrack(self);
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<Object*>(self)->body;
    type->tp_free(self);
    Py_DECREF(type);
  }

  static Ref type(const char* name, PyMethodDef* methods) {
    static PyMemberDef members[] = {
        {"__vectorcalloffset__", T_PYSSIZET, offsetof(Object, vectorcall), READONLY, nullptr},
        {nullptr, 0, 0, 0, nullptr}};
    PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make)},
                           {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                           {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                           {Py_tp_clear, reinterpret_cast<void*>(clear)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                           {Py_tp_members, members},
                           {Py_tp_methods, methods},
                           {0, nullptr}};
    PyType_Spec spec{name, sizeof(Object), 0,
                     Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};
    return checked(PyType_FromSpec(&spec));
  }
};

// ---- torch --------------------------------------------------------------------------------------

// What is asked of torch in every call, looked up once.
struct Torch {
  PyTypeObject* tensor = nullptr;
  PyTypeObject* parameter = nullptr;
  PyGetSetDef* address = nullptr;  // of a tensor's TensorImpl
  Py_ssize_t offset = 0;           // of that address in a Python object, if it is known
  PyObject* is_filling = nullptr;  // whether fresh memory may have to be filled
  PyObject* threads = nullptr;
  PyObject* stream = nullptr;
  PyObject* forward_mode = nullptr;  // the names of torch.autograd.forward_ad
  PyObject* level = nullptr;
  PyObject* no_level = nullptr;
  PyObject* compiler = nullptr;  // the names of torch.compiler
  PyObject* is_compiling = nullptr;
  PyObject* memo = nullptr;  // names of what a module remembers
  PyObject* known = nullptr;
} torch;

PyObject* looked_up(const char* module, const char* name) {
  const Ref found = checked(PyImport_ImportModule(module));
  return checked(PyObject_GetAttrString(found.get(), name)).release();
}

c10::TensorImpl* told_address(PyObject* tensor) {
  const Ref found = checked(torch.address->get(tensor, torch.address->closure));
  return static_cast<c10::TensorImpl*>(PyLong_AsVoidPtr(found.get()));
}

constexpr Py_ssize_t kHead = sizeof(PyObject);

template <class Word>
Word word_at(PyObject* object, Py_ssize_t offset) {
  return *reinterpret_cast<const Word*>(reinterpret_cast<const char*>(object) + offset);
}

// The first word behind an object's head is its tensor; in earlier releases of torch the second is,
// and the first says whether the object merely borrows it. 0 if it is neither.
Py_ssize_t offset_of_address() {
  const Ref tensor = called(reinterpret_cast<PyObject*>(torch.tensor));
  const Ref parameter = called(reinterpret_cast<PyObject*>(torch.parameter));
  for (const Py_ssize_t offset : {kHead, kHead + Py_ssize_t{sizeof(void*)}}) {
    const auto is_there = [&](PyObject* object) {
      return word_at<c10::TensorImpl*>(object, offset) == told_address(object);
    };
    if (is_there(tensor.get()) && is_there(parameter.get())) return offset;
  }
  return 0;
}

void look_up_torch() {
  torch.tensor = reinterpret_cast<PyTypeObject*>(looked_up("torch", "Tensor"));
  torch.parameter = reinterpret_cast<PyTypeObject*>(looked_up("torch.nn", "Parameter"));
  const Ref base(looked_up("torch._C", "TensorBase"));
  PyObject* address = checked(PyObject_GetAttrString(base.get(), "_cdata")).release();
  if (!Py_IS_TYPE(address, &PyGetSetDescr_Type)) {
    PyErr_SetString(PyExc_ImportError, "Tensors of this torch do not tell their address.");
    throw PythonError();
  }
  torch.address = reinterpret_cast<PyGetSetDescrObject*>(address)->d_getset;
  torch.offset = offset_of_address();
  torch.is_filling = looked_up("torch._C", "_get_deterministic_algorithms");
  torch.threads = looked_up("torch._C", "get_num_threads");
#ifdef KW_CUDA
  torch.stream = looked_up("torch._C", "_cuda_getCurrentRawStream");
#endif
  torch.forward_mode = looked_up("torch.autograd.forward_ad", "__dict__");
  torch.level = checked(PyUnicode_InternFromString("_current_level")).release();
  torch.no_level = checked(PyLong_FromLong(-1)).release();
  torch.compiler = looked_up("torch.compiler", "__dict__");
  torch.is_compiling = checked(PyUnicode_InternFromString("_is_compiling_flag")).release();
  torch.memo = checked(PyUnicode_InternFromString("_kernelwright")).release();
  torch.known = checked(PyUnicode_InternFromString("known")).release();
}

bool is_tensor(PyObject* object) {
  return Py_IS_TYPE(object, torch.tensor) || Py_IS_TYPE(object, torch.parameter);
}

c10::TensorImpl& tensor_of(PyObject* object) {
  if (is_tensor(object) && torch.offset != 0) {
    const bool borrows = torch.offset != kHead && word_at<bool>(object, kHead);
    if (!borrows) return *word_at<c10::TensorImpl*>(object, torch.offset);
  }
  if (!PyObject_TypeCheck(object, torch.tensor)) {
    PyErr_SetString(PyExc_TypeError, "A kernel was given something that is no tensor.");
    throw PythonError();
  }
  return *told_address(object);
}

// What a tensor is, but for its values, its place in memory and its gradient.
class Likeness {
 public:
  explicit Likeness(const c10::TensorImpl& tensor)
      : keys_(tensor.key_set()),
        dtype_(tensor.dtype()),
        device_(tensor.device()),
        sizes_(tensor.sizes().vec()),
        strides_(tensor.strides().vec()) {}

  bool fits(const c10::TensorImpl& tensor) const {
    return tensor.key_set() == keys_ && tensor.dtype() == dtype_ && tensor.device() == device_ &&
           tensor.sizes() == sizes_ && tensor.strides() == strides_;
  }

 private:
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  c10::Device device_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
};

// ---- a picture of a module ----------------------------------------------------------------------

// A number that is another one after every change of a dict; 0 where there is none.
uint64_t version_of(PyObject* container) {
#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  if (PyDict_Check(container)) return reinterpret_cast<PyDictObject*>(container)->ma_version_tag;
#pragma GCC diagnostic pop
#endif
  return 0;
}

// Picture(containers, modules)() is true as long as the containers hold the very same objects in
// the same order, under the same keys, and the modules are of the same classes. A dict that was not
// changed at all since it was last looked at is not looked at again.
class Picture {
 public:
  explicit Picture(PyObject* args) {
    PyObject* containers = item(args, 0);
    PyObject* modules = item(args, 1);
    for (Py_ssize_t i = 0; i < PyTuple_Size(containers); ++i) {
      PyObject* container = item(containers, i);
      const size_t begin = seen_.size();
      each(container, [&](PyObject* object) {
        seen_.push_back(Ref::to(object));
        return true;
      });
      containers_.push_back({Ref::to(container), begin, seen_.size(), version_of(container)});
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(modules); ++i) {
      PyObject* module = item(modules, i);
      modules_.push_back(Ref::to(module));
      classes_.push_back(Ref::to(reinterpret_cast<PyObject*>(Py_TYPE(module))));
    }
  }

  bool holds() {
    for (Container& container : containers_) {
      const uint64_t version = version_of(container.object.get());
      if (version != 0 && version == container.version) continue;
      if (!is_same(container)) return false;
      container.version = version;
    }
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (reinterpret_cast<PyObject*>(Py_TYPE(modules_[i].get())) != classes_[i].get())
        return false;
    }
    return true;
  }

  PyObject* call(PyObject* const*, Py_ssize_t) { return PyBool_FromLong(holds()); }

  int visit(visitproc visit, void* arg) const {
    for (const Container& container : containers_) Py_VISIT(container.object.get());
    for (const Ref& object : seen_) Py_VISIT(object.get());
    for (const Ref& object : modules_) Py_VISIT(object.get());
    for (const Ref& object : classes_) Py_VISIT(object.get());
    return 0;
  }

  void release() {
    const auto dropped = std::make_tuple(std::move(containers_), std::move(seen_),
                                         std::move(modules_), std::move(classes_));
  }

 private:
  struct Container {
    Ref object;
    size_t begin;  // of what it held, in seen_
    size_t end;
    uint64_t version;  // when it was last found the same
  };

  bool is_same(const Container& container) const {
    size_t next = container.begin;
    const bool same = each(container.object.get(), [&](PyObject* object) {
      return next != container.end && seen_[next++].get() == object;
    });
    return same && next == container.end;
  }

  // Whether the function says yes to all that a container holds.
  template <class Function>
  static bool each(PyObject* container, const Function& function) {
    if (PyDict_Check(container)) {
      PyObject *key, *value;
      for (Py_ssize_t at = 0; PyDict_Next(container, &at, &key, &value) != 0;) {
        if (!function(key) || !function(value)) return false;
      }
      return true;
    }
    const Ref iterator = checked(PyObject_GetIter(container));
    while (const Ref object{PyIter_Next(iterator.get())}) {
      if (!function(object.get())) return false;
    }
    if (PyErr_Occurred() != nullptr) throw PythonError();
    return true;
  }

  std::vector<Container> containers_;
  std::vector<Ref> seen_;
  std::vector<Ref> modules_;
  std::vector<Ref> classes_;
};

// ---- the steps of a call ------------------------------------------------------------------------

constexpr int64_t kAlignment = 16;

// Runs the launches of a table: their number, the most operands and the most sizes, then for each
// launch its function, how many operands and sizes, a base and a number of bytes for each operand,
// and the sizes. Two numbers are handed to each behind its sizes: the device and the stream, or the
// number of threads and nothing. The error of a launch comes back with its place in the upper half.
int64_t run_launches(const int64_t* table, char* const* bases, int64_t first, int64_t second) {
  using Launcher = int (*)(void* const*, const int64_t*);
  const int64_t launches = table[0];
  c10::SmallVector<void*, 16> tensors(static_cast<size_t>(table[1]));
  c10::SmallVector<int64_t, 16> sizes(static_cast<size_t>(table[2]) + 2);
  const int64_t* at = table + 3;
  for (int64_t launch = 0; launch < launches; ++launch) {
    const auto function = reinterpret_cast<Launcher>(at[0]);
    const auto operands = static_cast<size_t>(at[1]);
    const auto count = static_cast<size_t>(at[2]);
    at += 3;
    for (size_t i = 0; i < operands; ++i, at += 2) tensors[i] = bases[at[0]] + at[1];
    for (size_t i = 0; i < count; ++i) sizes[i] = *at++;
    sizes[count] = first;
    sizes[count + 1] = second;
    const int code = function(tensors.data(), sizes.data());
    if (code != 0) return (launch << 32) | code;
  }
  return 0;
}

// A tensor of a call. What only kernels touch never becomes an object of Python.
class Value {
 public:
  Value() = default;
  explicit Value(Ref object) : object_(std::move(object)) {}
  explicit Value(at::TensorBase tensor) : tensor_(std::move(tensor)) {}

  PyObject* object() {
    if (!object_) object_ = checked(THPVariable_Wrap(tensor_));
    return object_.get();
  }

  c10::TensorImpl& tensor() const {
    return tensor_.defined() ? *tensor_.unsafeGetTensorImpl() : tensor_of(object_.get());
  }

 private:
  Ref object_;
  at::TensorBase tensor_;
};

using Values = c10::SmallVector<Value, 16>;

// Kernels work on dense memory, aligned on a GPU. A copy that is, or nothing where the tensor is.
Ref copy_for_kernels(Value& value) {
  const auto is_aligned = [](const c10::TensorImpl& tensor) {
    return !tensor.device().is_cuda() ||
           reinterpret_cast<intptr_t>(tensor.data()) % kAlignment == 0;
  };
  Ref copy;
  if (!value.tensor().is_contiguous()) {
    copy = checked(PyObject_CallMethod(value.object(), "contiguous", nullptr));
  }
  if (!is_aligned(copy ? tensor_of(copy.get()) : value.tensor())) {
    PyObject* from = copy ? copy.get() : value.object();
    copy = checked(PyObject_CallMethod(from, "clone", nullptr));
  }
  return copy;
}

class Step {
 public:
  explicit Step(PyObject* done) : done_(numbers(done)) {}
  virtual ~Step() = default;
  virtual void run(Values& values) const = 0;
  virtual int visit(visitproc visit, void* arg) const = 0;

  // What nobody needs behind this step is given back.
  void finish(Values& values) const {
    for (const int64_t i : done_) values[static_cast<size_t>(i)] = Value();
  }

 private:
  std::vector<int64_t> done_;
};

// Memory without values: (index, sizes, strides, a tensor like it, the same by torch).
class Empty : public Step {
 public:
  Empty(PyObject* row, PyObject* done)
      : Step(done),
        index_(static_cast<size_t>(number(item(row, 0)))),
        sizes_(numbers(item(row, 1))),
        strides_(numbers(item(row, 2))),
        dtype_(tensor_of(item(row, 3)).dtype().toScalarType()),
        device_(tensor_of(item(row, 3)).device()),
        by_torch_(Ref::to(item(row, 4))) {}

  void run(Values& values) const override { values[index_] = made(); }

  int visit(visitproc visit, void* arg) const override {
    Py_VISIT(by_torch_.get());
    return 0;
  }

 private:
  Value made() const {
    if (!is_true(called(torch.is_filling).get())) {
      try {
        return Value(allocated());
      } catch (const std::exception&) {  // torch says below what was wrong
      }
    }
    return Value(called(by_torch_.get()));
  }

  at::TensorBase allocated() const {
#ifdef KW_CUDA
    if (device_.is_cuda()) return at::detail::empty_strided_cuda(sizes_, strides_, dtype_, device_);
#endif
    return at::detail::empty_strided_cpu(sizes_, strides_, dtype_);
  }

  size_t index_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
  c10::ScalarType dtype_;
  c10::Device device_;
  Ref by_torch_;
};

// Kernels in a row: (table, the values that they work on, device or None, names, what is told the
// names before they start, what tells an error).
class Launches : public Step {
 public:
  Launches(PyObject* row, PyObject* done)
      : Step(done),
        table_(Ref::to(item(row, 0))),
        bases_(numbers(item(row, 1))),
        device_(Ref::to(item(row, 2))),
        names_(Ref::to(item(row, 3))),
        watchers_(Ref::to(item(row, 4))),
        failed_(Ref::to(item(row, 5))) {}

  void run(Values& values) const override {
    for (Py_ssize_t i = 0; i < PyList_Size(watchers_.get()); ++i) {
      checked(PyObject_CallOneArg(PyList_GetItem(watchers_.get(), i), names_.get()));
    }
    c10::SmallVector<char*, 32> bases;
    std::vector<Ref> copies;
    for (const int64_t i : bases_) {
      bases.push_back(address(values[static_cast<size_t>(i)], copies));
    }
    const bool on_gpu = device_.get() != Py_None;
    const Ref second =
        checked(on_gpu ? PyObject_CallOneArg(torch.stream, device_.get()) : PyLong_FromLong(0));
    const int64_t first = on_gpu ? number(device_.get()) : number(called(torch.threads).get());
    const auto* table = reinterpret_cast<const int64_t*>(PyBytes_AsString(table_.get()));
    const int64_t on = number(second.get());
    int64_t code = 0;
    Py_BEGIN_ALLOW_THREADS;
    code = run_launches(table, bases.data(), first, on);
    Py_END_ALLOW_THREADS;
    if (code != 0) checked(PyObject_CallFunction(failed_.get(), "OL", names_.get(), code));
  }

  int visit(visitproc visit, void* arg) const override {
    Py_VISIT(watchers_.get());
    Py_VISIT(failed_.get());
    return 0;
  }

 private:
  static char* address(Value& value, std::vector<Ref>& copies) {
    Ref copy = copy_for_kernels(value);
    const c10::TensorImpl& tensor = copy ? tensor_of(copy.get()) : value.tensor();
    if (copy) copies.push_back(std::move(copy));
    return static_cast<char*>(const_cast<void*>(tensor.data()));
  }

  Ref table_;
  std::vector<int64_t> bases_;
  Ref device_;
  Ref names_;
  Ref watchers_;
  Ref failed_;
};

// A function of Python: (function, the values that it is given, rows of them or None, index).
class Call : public Step {
 public:
  Call(PyObject* row, PyObject* done)
      : Step(done),
        function_(Ref::to(item(row, 0))),
        given_(numbers(item(row, 1))),
        rows_(Ref::to(item(row, 2))),
        index_(static_cast<size_t>(number(item(row, 3)))) {}

  void run(Values& values) const override {
    c10::SmallVector<PyObject*, 8> given;
    std::vector<Ref> parts;
    for (size_t i = 0; i < given_.size(); ++i) {
      given.push_back(values[static_cast<size_t>(given_[i])].object());
      PyObject* rows = item(rows_.get(), static_cast<Py_ssize_t>(i));
      if (rows != Py_None) {
        parts.push_back(checked(PyObject_GetItem(given.back(), rows)));
        given.back() = parts.back().get();
      }
    }
    values[index_] =
        Value(checked(PyObject_Vectorcall(function_.get(), given.data(), given.size(), nullptr)));
  }

  int visit(visitproc visit, void* arg) const override {
    Py_VISIT(function_.get());
    Py_VISIT(rows_.get());
    return 0;
  }

 private:
  Ref function_;
  std::vector<int64_t> given_;
  Ref rows_;
  size_t index_;
};

// Sequence(count, kept, steps, results, written)(tensors, frozen) gives a tuple of the results.
// There are `count` values; the tensors are the first of them, and frozen ones have the places
// `kept`. A step is a name, what that kind of step needs, and the values that nobody needs behind
// it. Kernels change the tensors `written`.
class Sequence {
 public:
  explicit Sequence(PyObject* args)
      : count_(static_cast<size_t>(number(item(args, 0)))),
        kept_(numbers(item(args, 1))),
        results_(numbers(item(args, 3))),
        written_(numbers(item(args, 4))) {
    PyObject* steps = item(args, 2);
    for (Py_ssize_t i = 0; i < PyTuple_Size(steps); ++i) {
      PyObject* step = item(steps, i);
      steps_.push_back(read(item(step, 0), item(step, 1), item(step, 2)));
    }
  }

  PyObject* call(PyObject* const* args, Py_ssize_t) const {
    PyObject* tensors = args[0];
    return run(reinterpret_cast<PyTupleObject*>(tensors)->ob_item,
               static_cast<size_t>(PyTuple_Size(tensors)), args[1]);
  }

  PyObject* run(PyObject* const* tensors, size_t given, PyObject* frozen) const {
    Values values;
    values.resize(count_);
    for (size_t i = 0; i < given; ++i) values[i] = Value(Ref::to(tensors[i]));
    for (size_t i = 0; i < kept_.size(); ++i) {
      PyObject* half = item(frozen, static_cast<Py_ssize_t>(i));
      values[static_cast<size_t>(kept_[i])] = Value(Ref::to(half));
    }
    const Lent lent = lend(values);
    for (const auto& step : steps_) {
      step->run(values);
      step->finish(values);
    }
    take_back(lent);
    Ref results = checked(PyTuple_New(static_cast<Py_ssize_t>(results_.size())));
    for (size_t i = 0; i < results_.size(); ++i) {
      PyObject* result = values[static_cast<size_t>(results_[i])].object();
      PyTuple_SetItem(results.get(), static_cast<Py_ssize_t>(i), Py_NewRef(result));
    }
    return results.release();
  }

  int visit(visitproc visit, void* arg) const {
    for (const auto& step : steps_) {
      if (const int found = step->visit(visit, arg)) return found;
    }
    return 0;
  }

  void release() { const auto dropped = std::move(steps_); }

 private:
  // Buffers with the dense copies that stand in their places.
  using Lent = std::vector<std::pair<Ref, Ref>>;

  // To autograd, each of these is about to be changed. For a copy, copy_ will say so.
  Lent lend(Values& values) const {
    Lent lent;
    for (const int64_t i : written_) {
      Value& value = values[static_cast<size_t>(i)];
      Ref copy = copy_for_kernels(value);
      if (!copy) {
        value.tensor().bump_version();
        continue;
      }
      lent.emplace_back(Ref::to(value.object()), Ref::to(copy.get()));
      value = Value(std::move(copy));
    }
    return lent;
  }

  static void take_back(const Lent& lent) {
    const c10::AutoGradMode without(false);
    for (const auto& [buffer, copy] : lent) {
      checked(PyObject_CallMethod(buffer.get(), "copy_", "O", copy.get()));
    }
  }

  static std::unique_ptr<Step> read(PyObject* name, PyObject* row, PyObject* done) {
    if (PyUnicode_CompareWithASCIIString(name, "empty") == 0) {
      return std::make_unique<Empty>(row, done);
    }
    if (PyUnicode_CompareWithASCIIString(name, "launches") == 0) {
      return std::make_unique<Launches>(row, done);
    }
    return std::make_unique<Call>(row, done);
  }

  size_t count_;
  std::vector<int64_t> kept_;
  std::vector<std::unique_ptr<Step>> steps_;
  std::vector<int64_t> results_;
  std::vector<int64_t> written_;
};

// ---- a call that autograd sees ------------------------------------------------------------------

// kw_record of node.cpp, once it is compiled; until then autograd's function of Python records.
using Recorder = void (*)(PyObject* backward, c10::TensorImpl* const* tensors,
                          c10::TensorImpl* const* saved, size_t count,
                          c10::TensorImpl* const* results, const bool* flows, size_t result_count);
Recorder recorder = nullptr;

// How a call becomes a node of autograd's graph: the function of Python that gives its gradients,
// the tensors that each result's gradient flows to, and those that the call itself rewrites, which
// backward does without.
class History {
 public:
  History(PyObject* backward, PyObject* reaches, PyObject* rewritten)
      : backward_(Ref::to(backward)), rewritten_(numbers(rewritten)) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(reaches); ++i) {
      reaches_.push_back(numbers(item(reaches, i)));
    }
  }

  // The results of a call whose steps ran without gradients.
  Ref added(Ref results, PyObject* const* given, size_t count) const {
    Tensors tensors, saved, made;
    for (size_t i = 0; i < count; ++i) tensors.push_back(&tensor_of(given[i]));
    saved = tensors;
    for (const int64_t i : rewritten_) saved[static_cast<size_t>(i)] = nullptr;
    c10::SmallVector<bool, 8> flows;
    for (size_t i = 0; i < reaches_.size(); ++i) {
      const auto place = static_cast<Py_ssize_t>(i);
      PyObject* result = item(results.get(), place);
      flows.push_back(flows_to(reaches_[i], tensors, tensor_of(result)));
      if (std::find(tensors.begin(), tensors.end(), &tensor_of(result)) != tensors.end()) {
        Ref other = another(result, flows.back());
        result = other.get();
        PyTuple_SetItem(results.get(), place, other.release());
      }
      made.push_back(&tensor_of(result));
    }
    if (std::find(flows.begin(), flows.end(), true) != flows.end()) {
      recorder(backward_.get(), tensors.data(), saved.data(), count, made.data(), flows.data(),
               made.size());
    }
    return results;
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(backward_.get());
    return 0;
  }

 private:
  using Tensors = c10::SmallVector<c10::TensorImpl*, 32>;

  static bool flows_to(const std::vector<int64_t>& reached, const Tensors& tensors,
                       const c10::TensorImpl& result) {
    const auto type = result.dtype().toScalarType();
    return (c10::isFloatingType(type) || c10::isComplexType(type)) &&
           std::any_of(reached.begin(), reached.end(),
                       [&](int64_t i) { return tensors[static_cast<size_t>(i)]->requires_grad(); });
  }

  // A tensor of the call that comes out as it went in: what it was stays the caller's.
  static Ref another(PyObject* tensor, bool flows) {
    if (!flows && tensor_of(tensor).requires_grad()) {
      return checked(PyObject_CallMethod(tensor, "detach", nullptr));
    }
    const c10::AutoGradMode without(false);
    return checked(PyObject_CallMethod(tensor, "view_as", "O", tensor));
  }

  Ref backward_;
  std::vector<std::vector<int64_t>> reaches_;
  std::vector<int64_t> rewritten_;
};

// ---- calls that are known -----------------------------------------------------------------------

// A weight whose halves are frozen, and what would tell that it was changed.
struct Stamp {
  size_t place;
  const void* address;
  int64_t version;

  bool holds(c10::TensorImpl& weight) const {
    return weight.data() == address && version_of(weight) == version;
  }

  static int64_t version_of(c10::TensorImpl& weight) {
    return weight.is_inference() ? -1 : weight.version_counter().current_version();
  }
};

// One kind of call: everything that a later one must share with it, and how its results are made.
class Record {
 public:
  // (arguments, which of them are inputs, state, what the file's switch said, frozen halves, places
  // of their weights, whether the library is as precise as it must be, sequence; then autograd's
  // function and what is handed to it, and what History is told, or None)
  explicit Record(PyObject* row)
      : keys_(c10::impl::tls_local_dispatch_key_set()),
        inputs_(numbers(item(row, 1))),
        state_(Ref::to(item(row, 2))),
        switched_(Ref::to(item(row, 3))),
        frozen_(Ref::to(item(row, 4))),
        is_precise_(Ref::to(item(row, 6))),
        sequence_(Ref::to(item(row, 7))),
        record_(Ref::to(item(row, 8))),
        handed_(Ref::to(item(row, 9))) {
    if (item(row, 10) != Py_None) {
      history_ = std::make_unique<History>(item(row, 10), item(row, 11), item(row, 12));
    }
    PyObject* arguments = item(row, 0);
    for (Py_ssize_t i = 0; i < PyTuple_Size(arguments); ++i) {
      arguments_.push_back(argument(item(arguments, i)));
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(state_.get()); ++i) {
      likenesses_.emplace_back(tensor_of(item(state_.get(), i)));
    }
    for (const int64_t place : numbers(item(row, 5))) {
      c10::TensorImpl& weight = tensor_of(item(state_.get(), place));
      stamps_.push_back({static_cast<size_t>(place), weight.data(), Stamp::version_of(weight)});
    }
  }

  // Whether a call is of this kind; and if so, whether gradients flow to any of its tensors.
  bool fits(PyObject* const* arguments, size_t count, PyObject* switched,
            bool& differentiable) const {
    return count == arguments_.size() && switched == switched_.get() && same_keys() &&
           arguments_fit(arguments, differentiable) && state_fits(differentiable);
  }

  // The results, or None: this is another kind of call, or something was touched since.
  Ref results(PyObject* const* arguments, size_t count, PyObject* switched) const {
    bool differentiable = false;
    if (!fits(arguments, count, switched, differentiable) || !is_precise()) {
      return Ref::to(Py_None);
    }
    c10::SmallVector<PyObject*, 32> tensors;
    tensors.push_back(handed_.get());
    for (const int64_t i : inputs_) tensors.push_back(arguments[i]);
    for (size_t i = 0; i < likenesses_.size(); ++i) tensors.push_back(state(i));
    return made(tensors, differentiable && c10::GradMode::is_enabled());
  }

  int visit(visitproc visit, void* arg) const {
    for (const Argument& argument : arguments_) Py_VISIT(argument.literal.get());
    for (const Ref* object :
         {&state_, &switched_, &frozen_, &is_precise_, &sequence_, &record_, &handed_}) {
      Py_VISIT(object->get());
    }
    return history_ == nullptr ? 0 : history_->visit(visit, arg);
  }

 private:
  Ref made(const c10::SmallVectorImpl<PyObject*>& tensors, bool recorded) const {
    if (recorded && (history_ == nullptr || recorder == nullptr)) {
      return checked(PyObject_Vectorcall(record_.get(), tensors.data(), tensors.size(), nullptr));
    }
    PyObject* const* given = tensors.data() + 1;
    const size_t count = tensors.size() - 1;
    Ref results;
    {
      const c10::AutoGradMode mode(c10::GradMode::is_enabled() && !recorded);
      const Sequence& sequence = Object<Sequence>::of(sequence_.get());
      results = checked(sequence.run(given, count, frozen_.get()));
    }
    return recorded ? history_->added(std::move(results), given, count) : std::move(results);
  }

  struct Argument {
    std::unique_ptr<Likeness> tensor;
    Ref literal;
  };

  static Argument argument(PyObject* given) {
    if (!is_tensor(given)) return {nullptr, Ref::to(given)};
    return {std::make_unique<Likeness>(tensor_of(given)), Ref()};
  }

  PyObject* state(size_t i) const {
    return PyTuple_GET_ITEM(state_.get(), static_cast<Py_ssize_t>(i));
  }

  // Modes, tracers, transforms, autocast and inference mode all are keys of the dispatcher.
  bool same_keys() const {
    const auto now = c10::impl::tls_local_dispatch_key_set();
    return now.included_ == keys_.included_ && now.excluded_ == keys_.excluded_;
  }

  bool arguments_fit(PyObject* const* arguments, bool& differentiable) const {
    for (size_t i = 0; i < arguments_.size(); ++i) {
      const auto& [likeness, literal] = arguments_[i];
      if (likeness == nullptr) {
        if (!same_literal(literal.get(), arguments[i])) return false;
        continue;
      }
      if (!is_tensor(arguments[i])) return false;
      const c10::TensorImpl& tensor = tensor_of(arguments[i]);
      if (!likeness->fits(tensor)) return false;
      differentiable = differentiable || tensor.requires_grad();
    }
    return true;
  }

  bool state_fits(bool& differentiable) const {
    for (size_t i = 0; i < likenesses_.size(); ++i) {
      const c10::TensorImpl& tensor = tensor_of(state(i));
      if (!likenesses_[i].fits(tensor)) return false;
      differentiable = differentiable || tensor.requires_grad();
    }
    return std::all_of(stamps_.begin(), stamps_.end(), [&](const Stamp& stamp) {
      return stamp.holds(tensor_of(state(stamp.place)));
    });
  }

  bool is_precise() const {
    return is_precise_.get() == Py_None || is_true(called(is_precise_.get()).get());
  }

  // Of one type and equal; floats bit by bit, since zeros of both signs are equal.
  static bool same_literal(PyObject* before, PyObject* now) {
    if (before == now) return true;
    if (Py_TYPE(before) != Py_TYPE(now) || PyFloat_CheckExact(now)) return false;
    const int found = PyObject_RichCompareBool(before, now, Py_EQ);
    if (found < 0) throw PythonError();
    return found != 0;
  }

  c10::impl::LocalDispatchKeySet keys_;
  std::vector<Argument> arguments_;
  std::vector<int64_t> inputs_;
  Ref state_;
  std::vector<Likeness> likenesses_;
  Ref switched_;
  Ref frozen_;
  std::vector<Stamp> stamps_;
  Ref is_precise_;
  Ref sequence_;
  Ref record_;
  Ref handed_;
  std::unique_ptr<History> history_;
};

// Known(names of the module, its Picture, the file's switch)(names, *arguments) gives the results
// of a call like one that was added, or None.
class Known {
 public:
  static constexpr size_t kMost = 16;

  explicit Known(PyObject* args)
      : names_(Ref::to(item(args, 0))),
        picture_(Ref::to(item(args, 1))),
        switch_(Ref::to(item(args, 2))),
        is_recomputing_(Ref::to(item(args, 3))) {}

  PyObject* call(PyObject* const* args, Py_ssize_t count) {
    if (records_.empty() || args[0] != names_.get() || is_watched()) Py_RETURN_NONE;
    if (!Object<Picture>::of(picture_.get()).holds()) Py_RETURN_NONE;
    const Ref switched = called(switch_.get());
    for (size_t i = 0; i < records_.size(); ++i) {
      const std::shared_ptr<Record> record = records_[i];  // others may clear the table meanwhile
      Ref results = record->results(args + 1, static_cast<size_t>(count - 1), switched.get());
      if (results.get() != Py_None) return results.release();
    }
    Py_RETURN_NONE;
  }

  // Unless it is known already. The last ones are looked at first, and the first ones forgotten.
  static PyObject* add(PyObject* self, PyObject* args) {
    return Object<Known>::guarded([&]() -> PyObject* {
      auto& records = Object<Known>::of(self).records_;
      PyObject* arguments = item(args, 0);
      PyObject* const* given = reinterpret_cast<PyTupleObject*>(arguments)->ob_item;
      const auto count = static_cast<size_t>(PyTuple_Size(arguments));
      bool differentiable = false;
      for (const auto& record : records) {
        if (record->fits(given, count, item(args, 3), differentiable)) Py_RETURN_NONE;
      }
      records.insert(records.begin(), std::make_shared<Record>(args));
      if (records.size() > kMost) records.pop_back();
      Py_RETURN_NONE;
    });
  }

  static PyObject* forget(PyObject* self, PyObject*) {
    const auto dropped = std::move(Object<Known>::of(self).records_);
    Py_RETURN_NONE;
  }

  int visit(visitproc visit, void* arg) const {
    Py_VISIT(names_.get());
    Py_VISIT(picture_.get());
    Py_VISIT(switch_.get());
    Py_VISIT(is_recomputing_.get());
    for (const auto& record : records_) {
      if (const int found = record->visit(visit, arg)) return found;
    }
    return 0;
  }

  void release() { const auto dropped = std::move(records_); }

 private:
  // Most modes of functions, such as a default device, are nothing to a call.
  bool is_watched() const {
    const bool in_modes = at::impl::PythonTorchFunctionTLS::stack_len() != 0;
    return (in_modes && is_true(called(is_recomputing_.get()).get())) ||
           PyDict_GetItem(torch.forward_mode, torch.level) != torch.no_level;
  }

  Ref names_;
  Ref picture_;
  Ref switch_;
  Ref is_recomputing_;
  std::vector<std::shared_ptr<Record>> records_;
};

// again(module, *arguments) asks the module's Known, if it has one.
PyObject* again(PyObject*, PyObject* const* args, Py_ssize_t count) {
  return Object<Known>::guarded([&]() -> PyObject* {
    const Ref names = checked(PyObject_GenericGetDict(args[0], nullptr));
    PyObject* memo = PyDict_GetItem(names.get(), torch.memo);
    const bool is_traced = PyDict_GetItem(torch.compiler, torch.is_compiling) == Py_True;
    if (memo == nullptr || memo == Py_None || is_traced) Py_RETURN_NONE;
    const Ref known = checked(PyObject_GetAttr(memo, torch.known));
    c10::SmallVector<PyObject*, 8> handed(args, args + count);
    handed[0] = names.get();
    return PyObject_Vectorcall(known.get(), handed.data(), handed.size(), nullptr);
  });
}

PyObject* record(PyObject*, PyObject* address) {
  void* found = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred() != nullptr) return nullptr;
  recorder = reinterpret_cast<Recorder>(found);
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"again", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(again)),
                            METH_FASTCALL, nullptr},
                           {"record", record, METH_O, nullptr},
                           {nullptr, nullptr, 0, nullptr}};
PyMethodDef none[] = {{nullptr, nullptr, 0, nullptr}};
PyMethodDef known[] = {{"add", Known::add, METH_VARARGS, nullptr},
                       {"forget", Known::forget, METH_NOARGS, nullptr},
                       {nullptr, nullptr, 0, nullptr}};

void add_type(PyObject* module, const char* name, Ref type) {
  if (PyModule_AddObjectRef(module, name, type.get()) != 0) throw PythonError();
}

}  // namespace

#define KW_JOINED(first, second) first##second
#define KW_NAMED(first, second) KW_JOINED(first, second)

PyMODINIT_FUNC KW_NAMED(PyInit_, TORCH_EXTENSION_NAME)() {
  static PyModuleDef definition{
      PyModuleDef_HEAD_INIT, "calls", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};
  return Object<Known>::guarded([] {
    look_up_torch();
    Ref module = checked(PyModule_Create(&definition));
    add_type(module.get(), "Picture", Object<Picture>::type("kernelwright.Picture", none));
    add_type(module.get(), "Sequence", Object<Sequence>::type("kernelwright.Sequence", none));
    add_type(module.get(), "Known", Object<Known>::type("kernelwright.Known", known));
    return module.release();
  });
}
