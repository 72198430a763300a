// The node that a call of the kernels is in autograd's graph.
//
// torch.autograd.Function would do, and costs a call three times as much as the kernels of a small
// model: an object of Python for each node, tuples of what is saved and needed, sets of what is
// dirty. This node keeps the tensors of the call as torch's own nodes do, so what is written
// meanwhile, hooks of saved tensors and a second backward are torch's to see, and calls Python in
// backward alone.
//
// A library of its own, which calls.cpp is told of when it is there: headers of autograd take
// longer to compile than all kernels of a model, so nobody waits for them, and all works without.
#define AT_PER_OPERATOR_HEADERS  // or they would bring every operator with them: three seconds more
#include <Python.h>
#include <pybind11/cast.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

PyObject* THPVariable_Wrap(const at::TensorBase& tensor);

namespace {

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  ~Gil() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

}  // namespace

// An error of Python, as torch's engine hands it from thread to thread. The header that defines
// these two functions takes four seconds more to compile.
void pybind11::error_already_set::m_fetched_error_deleter(
    detail::error_fetch_and_normalize* error) {
  const Gil gil;
  const error_scope scope;
  delete error;
}

const char* pybind11::error_already_set::what() const noexcept {
  const Gil gil;
  const error_scope scope;
  return m_fetched_error->error_string().c_str();
}

namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

at::Tensor shared(c10::TensorImpl* tensor) {
  using Pointer = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  return at::Tensor(Pointer::reclaim_copy(tensor));
}

pybind11::object checked(PyObject* owned) {
  if (owned == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::object>(owned);
}

at::Tensor unwrapped(PyObject* tensor) {
  const auto address = checked(PyObject_GetAttrString(tensor, "_cdata"));
  void* found = PyLong_AsVoidPtr(address.ptr());
  if (found == nullptr) throw pybind11::error_already_set();
  return shared(static_cast<c10::TensorImpl*>(found));
}

// A tuple of what the function gives for 0, 1, ...
template <class Function>
pybind11::object tuple(size_t count, const Function& function) {
  pybind11::object found = checked(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(found.ptr(), static_cast<Py_ssize_t>(i), checked(function(i)).release().ptr());
  }
  return found;
}

// backward(tensors, wanted, cotangents) of Python gives a list of gradients, or None for some.
class Recorded : public Node {
 public:
  Recorded(PyObject* backward, torch::autograd::edge_list&& edges)
      : Node(std::move(edges)), backward_(Py_NewRef(backward)) {}

  // Of the graph's last nodes some are left when Python is not.
  ~Recorded() override {
    if (Py_IsInitialized() == 0) return;
    const Gil gil;
    Py_DECREF(backward_);
  }

  void save(c10::ArrayRef<c10::TensorImpl*> tensors) {
    auto saved = std::make_shared<std::vector<SavedVariable>>();
    saved->reserve(tensors.size());
    for (c10::TensorImpl* tensor : tensors) {
      if (tensor == nullptr) {
        saved->emplace_back();
      } else {
        saved->emplace_back(shared(tensor), /*is_output=*/false);
      }
    }
    saved_ = std::move(saved);
  }

  std::string name() const override { return "RecordedBackward"; }

  void release_variables() override {
    std::shared_ptr<const std::vector<SavedVariable>> dropped;  // behind the lock
    const std::lock_guard<std::mutex> lock(mutex_);
    dropped.swap(saved_);
  }

 protected:
  variable_list apply(variable_list&& cotangents) override {
    const auto saved = kept();
    TORCH_CHECK(saved != nullptr, torch::autograd::ERR_BACKWARD_TWICE);
    variable_list gradients(num_outputs());
    const Gil gil;
    const auto tensors =
        tuple(saved->size(), [&](size_t i) { return THPVariable_Wrap((*saved)[i].unpack()); });
    const auto wanted = tuple(
        num_outputs(), [&](size_t i) { return PyBool_FromLong(task_should_compute_output(i)); });
    const auto given =
        tuple(cotangents.size(), [&](size_t i) { return THPVariable_Wrap(cotangents[i]); });
    const auto found = checked(
        PyObject_CallFunctionObjArgs(backward_, tensors.ptr(), wanted.ptr(), given.ptr(), nullptr));
    for (size_t i = 0; i < gradients.size(); ++i) {
      PyObject* gradient = PyList_GetItem(found.ptr(), static_cast<Py_ssize_t>(i));
      if (gradient == nullptr) throw pybind11::error_already_set();
      if (gradient != Py_None) gradients[i] = unwrapped(gradient);
    }
    return gradients;
  }

 private:
  // One thread may drop what is saved while another, of a backward that retains it, reads it. The
  // lock is not held any longer: hooks of saved tensors are Python's, and wait for its lock.
  std::shared_ptr<const std::vector<SavedVariable>> kept() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return saved_;
  }

  PyObject* backward_;
  std::shared_ptr<const std::vector<SavedVariable>> saved_;
};

// A node as edges hold it: by a pointer of torch's own, and in releases before that by one of C++,
// whose deleter takes long chains of nodes apart without a call for each.
template <class Held>
Held held(Recorded* node) {
  if constexpr (std::is_same_v<Held, std::shared_ptr<Node>>) {
    return Held(node, [](auto* last) { deleteNode(last); });
  } else {
    return Held::unsafe_steal_from_new(node);
  }
}

}  // namespace

// Makes a node behind the tensors of a call, and its results the outputs of that node where
// gradients flow from them. Where `saved` has no tensor, backward needs none. Errors are thrown.
extern "C" void kw_record(PyObject* backward, c10::TensorImpl* const* tensors,
                          c10::TensorImpl* const* saved, size_t count,
                          c10::TensorImpl* const* results, const bool* flows, size_t result_count) {
  using torch::autograd::CreationMeta;
  namespace impl = torch::autograd::impl;
  torch::autograd::edge_list edges;
  edges.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const bool flows_here = tensors[i]->requires_grad();
    edges.push_back(flows_here ? impl::gradient_edge(shared(tensors[i])) : Edge());
  }
  auto* made = new Recorded(backward, std::move(edges));
  const auto node = held<decltype(Edge::function)>(made);
  const bool several = std::count(flows, flows + result_count, true) > 1;
  for (size_t i = 0; i < result_count; ++i) {
    const at::Tensor result = shared(results[i]);
    if (flows[i]) {
      impl::set_gradient_edge(result, {node, made->add_input_metadata(result)});
    } else {
      made->add_input_metadata(Node::undefined_input());
    }
    // As with any function of autograd, a view that comes out of it must not be written.
    if (auto* view = impl::get_view_autograd_meta(result)) {
      view->set_creation_meta(several ? CreationMeta::MULTI_OUTPUT_NODE
                                      : CreationMeta::IN_CUSTOM_FUNCTION);
    }
  }
  made->save({saved, count});
}
