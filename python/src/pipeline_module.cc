#include "python/src/pipeline_module.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <hetcomm_plan/hetcomm_plan.h>
#include <map>
#include <memory>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <hetcomm/pipeline.h>

#include "python/src/element_types.h"
#include "python/src/layout.h"
#include "python/src/objects.h"

using nb::literals::operator""_a;

namespace hetcomm_python {
namespace {

void check_pipeline(hetcomm_status_t status) {
  if (status != HETCOMM_OK) fail(status, hetcomm_pipeline_last_error());
}

// Returns the type under which arrays are exported. float8 types become bytes, because many
// libraries do not support their DLPack codes.
nb::dlpack::dtype exported_type(const ElementTypeEntry& type) {
  const bool is_float8 = type.code == 10 || type.code == 12;
  return {.code = is_float8 ? uint8_t{1} : type.code, .bits = type.bits, .lanes = 1};
}

// A PipelineTensor is a tensor in a buffer of a pipeline.
struct PipelineTensor {
  std::string name;
  std::string type;
  std::vector<uint64_t> shape;
  // The tensor's bytes as an array with the same shape, or None if the CPU cannot access them.
  nb::object array;
  uint64_t memory;  // the handle of the buffer's memory
  uint64_t offset;  // offset of the tensor's first byte in |memory|
  uint64_t bytes;
};

PipelineTensor tensor_of(const hetcomm_pipeline_tensor_t& given) {
  const ElementTypeEntry& type = kElementTypes[static_cast<size_t>(given.type)];
  PipelineTensor tensor{.name = given.name,
                        .type = type.name,
                        .shape = {given.shape, given.shape + given.dimensions},
                        .array = nb::none(),
                        .memory = reinterpret_cast<uintptr_t>(given.buffer.memory),
                        .offset = given.buffer.offset,
                        .bytes = given.buffer.length};
  if (given.address == nullptr) return tensor;
  const std::vector<size_t> shape(tensor.shape.begin(), tensor.shape.end());
  // The pipeline owns the memory. The array does not keep it alive.
  tensor.array = nb::cast(nb::ndarray<nb::array_api, nb::device::cpu>(
      given.address, shape.size(), shape.data(), nb::none(), nullptr, exported_type(type)));
  return tensor;
}

constexpr size_t kKinds = 8;
constexpr std::array<std::pair<const char*, int32_t>, kKinds> kKindNames = {
    {{"forward", HETCOMM_PIPELINE_FORWARD},
     {"backward", HETCOMM_PIPELINE_BACKWARD},
     {"input_grad", HETCOMM_PIPELINE_INPUT_GRAD},
     {"weight_grad", HETCOMM_PIPELINE_WEIGHT_GRAD},
     {"recompute", HETCOMM_PIPELINE_RECOMPUTE},
     {"reduce_grad", HETCOMM_PIPELINE_REDUCE_GRAD},
     {"unshard", HETCOMM_PIPELINE_UNSHARD},
     {"reshard", HETCOMM_PIPELINE_RESHARD}}};

const char* name_of_kind(int32_t kind) {
  for (const auto& [name, number] : kKindNames) {
    if (number == kind) return name;
  }
  return "";
}

// A PipelineAction is one step, in the form in which it is passed to a Python callback.
struct PipelineAction {
  const char* kind;
  uint32_t chunk;
  uint32_t stage;
  uint32_t micro_batch;
  uint32_t slot;
  bool evaluates;
  uint64_t step;
  uint64_t length;
  nb::list inputs;
  nb::list outputs;
  nb::list output_grads;
  nb::list input_grads;
};

// The gradient of one weight tensor: item, index, layout, array.
using GradientTuple = std::tuple<uint32_t, uint32_t, const Layout*, Output>;

// A Pipeline is a rank's pipeline with Python callbacks. The callbacks run on the thread that calls
// run(), and run() raises their exceptions.
class Pipeline {
 public:
  // Each of |chunks| maps kinds of steps to callbacks. |wrap| makes the object that is passed to
  // callbacks for a tensor. It is called once for each buffer. |stream| is a handle of a stream of
  // the rank's device, or 0. |pair| performs two actions that can overlap, or is None.
  Pipeline(nb::object communicator, const std::string& plan, const std::vector<nb::dict>& chunks,
           nb::object wrap, std::optional<double> timeout, uint64_t stream, nb::object pair)
      : parent_(std::move(communicator)), wrap_(std::move(wrap)), pair_(std::move(pair)) {
    callbacks_.reserve(chunks.size());
    std::vector<hetcomm_pipeline_chunk_t> own;
    for (const nb::dict& chunk : chunks) own.push_back(chunk_of(chunk));
    hetcomm_pipeline_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = nanoseconds(timeout);
    options.stream = reinterpret_cast<hetcomm_stream_t*>(stream);
    if (!pair_.is_none()) {
      options.pair = &Pipeline::call_pair;
      options.pair_user_data = this;
    }
    hetcomm_communicator_t* const communicator_handle = nb::cast<Communicator&>(parent_).handle();
    hetcomm_status_t status;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_pipeline_create(communicator_handle, plan.c_str(), own.data(), own.size(),
                                       &options, &handle_);
    }
    check_pipeline(status);
  }
  ~Pipeline() {
    const nb::gil_scoped_release unlocked;
    static_cast<void>(hetcomm_pipeline_destroy(handle_));
  }
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  void run(uint64_t step, std::optional<double> timeout, bool evaluate,
           const std::optional<std::vector<uint64_t>>& lengths) {
    hetcomm_pipeline_run_options_t options{};
    options.struct_size = sizeof(options);
    options.step = step;
    options.timeout_ns = nanoseconds(timeout);
    options.flags = evaluate ? HETCOMM_PIPELINE_EVALUATE : 0;
    options.interrupt = &Pipeline::ask;
    options.interrupt_user_data = this;
    if (lengths) {
      options.lengths = lengths->data();
      options.length_count = lengths->size();
    }
    hetcomm_pipeline_t* const own = handle();
    hetcomm_status_t status;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_pipeline_run(own, &options);
    }
    if (status == HETCOMM_OK) return;
    // With BUSY and INVALID_ARGUMENT no run has begun. raised_ then belongs to a run on another
    // thread.
    const bool has_begun = status != HETCOMM_BUSY && status != HETCOMM_INVALID_ARGUMENT;
    has_ended_ |= has_begun;
    if (has_begun && raised_.is_valid()) raise(std::exchange(raised_, nb::object()));
    fail(status, hetcomm_pipeline_last_error());
  }

  // Returns whether a run has failed. No further run can begin then.
  bool has_ended() const { return has_ended_; }

  void set_schedule(const std::string& plan, std::optional<double> timeout) {
    hetcomm_pipeline_t* const own = handle();
    const uint64_t timeout_ns = nanoseconds(timeout);
    hetcomm_status_t status;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_pipeline_set_schedule(own, plan.c_str(), timeout_ns);
    }
    check_pipeline(status);
    wrapped_.clear();
  }

  // Keeps the arrays alive until they are replaced or the pipeline is closed.
  void set_gradients(const std::vector<GradientTuple>& gradients, std::optional<double> timeout) {
    std::vector<hetcomm_pipeline_gradient_t> own;
    own.reserve(gradients.size());
    for (const auto& [item, index, layout, array] : gradients) {
      hetcomm_pipeline_gradient_t& gradient = own.emplace_back();
      gradient = {};
      gradient.struct_size = sizeof(gradient);
      gradient.item = item;
      gradient.index = index;
      gradient.layout = handle_of(layout);
      gradient.buffer = buffer_of(array);
      gradient.type = datatype_of(array.dtype());
    }
    hetcomm_pipeline_t* const handle_now = handle();
    const uint64_t timeout_ns = nanoseconds(timeout);
    hetcomm_status_t status;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_pipeline_set_gradients(handle_now, own.data(), own.size(), timeout_ns);
    }
    check_pipeline(status);
    gradients_.clear();
    for (const auto& each : gradients) gradients_.push_back(std::get<Output>(each));
  }

  void cancel(const std::string& reason) const {
    check_pipeline(hetcomm_pipeline_cancel(handle(), reason.c_str()));
  }

  nb::dict facts() const {
    hetcomm_pipeline_facts_t facts{};
    facts.struct_size = sizeof(facts);
    check_pipeline(hetcomm_pipeline_facts(handle(), &facts));
    nb::dict told;
    told["runs"] = facts.runs;
    told["callbacks"] = facts.callbacks;
    told["callback_seconds"] = static_cast<double>(facts.callback_ns) * 1e-9;
    told["data_wait_seconds"] = static_cast<double>(facts.data_wait_ns) * 1e-9;
    told["room_wait_seconds"] = static_cast<double>(facts.room_wait_ns) * 1e-9;
    told["end_wait_seconds"] = static_cast<double>(facts.end_wait_ns) * 1e-9;
    told["buffer_bytes"] = facts.buffer_bytes;
    told["slots"] = facts.slots;
    told["chunks"] = facts.chunks;
    return told;
  }

  std::string trace(const std::string& format) const {
    static constexpr const char* kFormats[] = {"json", "chrome"};
    const int32_t number = number_of(kFormats, std::size(kFormats), format, "format");
    return text_of(
        [&](size_t capacity, char* text, size_t* size) {
          return hetcomm_pipeline_trace(handle(), number, capacity, text, size);
        },
        hetcomm_pipeline_last_error);
  }

  void close() {
    if (handle_ == nullptr) return;
    // Clears the handle first, so that other threads see the pipeline as closed while it is
    // destroyed.
    hetcomm_pipeline_t* const own = std::exchange(handle_, nullptr);
    hetcomm_status_t status;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_pipeline_destroy(own);
    }
    if (status != HETCOMM_OK) handle_ = own;
    check_pipeline(status);
    gradients_.clear();
    wrapped_.clear();
    callbacks_.clear();
    pair_ = nb::none();
    parent_ = nb::none();
  }

  // Calls |visit| with each Python object that the pipeline references, for the garbage collector.
  // Callbacks may reference the pipeline in turn. Stops if a call does not return 0.
  template <typename Visit>
  int visit(Visit&& visit) const {
    for (const nb::object* each : {&parent_, &wrap_, &pair_, &raised_}) {
      if (const int stop = visit(each->ptr()); stop != 0) return stop;
    }
    for (const auto& callbacks : callbacks_) {
      for (const Callback& each : *callbacks) {
        if (const int stop = visit(each.function.ptr()); stop != 0) return stop;
      }
    }
    for (const auto& [place, tensor] : wrapped_) {
      if (const int stop = visit(tensor.ptr()); stop != 0) return stop;
    }
    return 0;
  }
  // Drops the references that visit() reports, except |parent_|. The pipeline is no longer in use.
  void drop() {
    for (const auto& callbacks : callbacks_) {
      for (Callback& each : *callbacks) each.function.reset();
    }
    wrapped_.clear();
    wrap_.reset();
    pair_.reset();
    raised_.reset();
  }

 private:
  struct Callback {
    Pipeline* pipeline;
    nb::object function;
  };
  using Callbacks = std::array<Callback, kKinds>;

  hetcomm_pipeline_t* handle() const {
    if (handle_ == nullptr) throw nb::value_error("the pipeline is closed");
    return handle_;
  }

  hetcomm_pipeline_chunk_t chunk_of(const nb::dict& given) {
    hetcomm_pipeline_chunk_t chunk{};
    chunk.struct_size = sizeof(chunk);
    hetcomm_pipeline_callback_t* const places[] = {
        &chunk.forward,   &chunk.backward,    &chunk.input_grad, &chunk.weight_grad,
        &chunk.recompute, &chunk.reduce_grad, &chunk.unshard,    &chunk.reshard};
    callbacks_.push_back(std::make_unique<Callbacks>());
    Callbacks& own = *callbacks_.back();
    for (const auto& [key, function] : given) {
      const std::string name = nb::cast<std::string>(key);
      const auto found = std::find_if(kKindNames.begin(), kKindNames.end(),
                                      [&](const auto& each) { return each.first == name; });
      if (found == kKindNames.end()) {
        throw nb::value_error(("there is no kind of step '" + name + "'").c_str());
      }
      const auto index = static_cast<size_t>(found - kKindNames.begin());
      own[index] = {this, nb::borrow(function)};
      *places[index] = {&Pipeline::call, &own[index]};
    }
    return chunk;
  }

  static hetcomm_status_t call(void* user_data, const hetcomm_pipeline_action_t* action) {
    auto& callback = *static_cast<Callback*>(user_data);
    Pipeline& own = *callback.pipeline;
    return own.guarded(*action, [&] { callback.function(own.action_of(*action)); });
  }

  static hetcomm_status_t call_pair(void* self, const hetcomm_pipeline_action_t* first,
                                    const hetcomm_pipeline_action_t* second) {
    Pipeline& own = *static_cast<Pipeline*>(self);
    return own.guarded(*first, [&] { own.pair_(own.action_of(*first), own.action_of(*second)); });
  }

  // Calls body() with the GIL held. If body() throws, reports the text of the exception to the
  // library as the reason. Stores a Python exception for run().
  template <typename Body>
  hetcomm_status_t guarded(const hetcomm_pipeline_action_t& action, Body&& body) {
    const nb::gil_scoped_acquire locked;
    try {
      body();
      return HETCOMM_OK;
    } catch (nb::python_error& error) {
      raised_ = take_exception(error);
    } catch (const std::exception& exception) {
      snprintf(action.reason, action.reason_capacity, "%s", exception.what());
      return HETCOMM_INTERNAL;
    }
    snprintf(action.reason, action.reason_capacity, "%s", described(raised_).c_str());
    return HETCOMM_INTERNAL;
  }

  // Runs pending signal handlers. If one raises an exception, such as KeyboardInterrupt, stores it
  // for run(), and cancels the run.
  static hetcomm_status_t ask(void* user_data) {
    const nb::gil_scoped_acquire locked;
    if (PyErr_CheckSignals() == 0) return HETCOMM_OK;
    static_cast<Pipeline*>(user_data)->raised_ = take_exception();
    return HETCOMM_CANCELLED;
  }

  PipelineAction action_of(const hetcomm_pipeline_action_t& given) {
    return {.kind = name_of_kind(given.kind),
            .chunk = given.chunk,
            .stage = given.stage,
            .micro_batch = given.micro_batch,
            .slot = given.slot,
            .evaluates = (given.flags & HETCOMM_PIPELINE_EVALUATE) != 0,
            .step = given.step,
            .length = given.length,
            .inputs = wrapped(given.inputs, given.input_count),
            .outputs = wrapped(given.outputs, given.output_count),
            .output_grads = wrapped(given.output_grads, given.output_grad_count),
            .input_grads = wrapped(given.input_grads, given.input_grad_count)};
  }

  nb::list wrapped(const hetcomm_pipeline_tensor_t* tensors, size_t count) {
    nb::list all;
    for (size_t i = 0; i < count; ++i) all.append(wrapped(tensors[i]));
    return all;
  }

  const nb::object& wrapped(const hetcomm_pipeline_tensor_t& tensor) {
    const Place place(tensor.buffer.memory, tensor.buffer.offset, tensor.buffer.length);
    nb::object& known = wrapped_[place];
    if (!known.is_valid()) known = wrap_(tensor_of(tensor));
    return known;
  }

  // Memory, offset and bytes of a tensor, which identify it. Tensors of different shapes differ in
  // one of them: only tensors for different lengths of micro-batches share an offset, and these
  // differ in their bytes.
  using Place = std::tuple<hetcomm_memory_t*, uint64_t, uint64_t>;

  nb::object parent_;
  nb::object wrap_;
  nb::object pair_;
  std::vector<std::unique_ptr<Callbacks>> callbacks_;
  std::map<Place, nb::object> wrapped_;
  bool has_ended_ = false;
  nb::object raised_;              // exception of a callback or a signal handler during the run
  std::vector<Output> gradients_;  // arrays that the library reads and writes
  hetcomm_pipeline_t* handle_ = nullptr;
};

int traverse_pipeline(PyObject* self, visitproc visit, void* arg) {
#if PY_VERSION_HEX >= 0x03090000
  Py_VISIT(Py_TYPE(self));
#endif
  if (!nb::inst_ready(self)) return 0;
  return nb::inst_ptr<Pipeline>(self)->visit(
      [&](PyObject* each) { return each == nullptr ? 0 : visit(each, arg); });
}
int clear_pipeline(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Pipeline>(self)->drop();
  return 0;
}

// Returns the text that |draft|, a function of libhetcomm_plan, makes from |document| in the format
// |form|.
template <typename Draft>
std::string drafted(Draft&& draft, const std::string& document, const std::string& form) {
  static constexpr const char* kForms[] = {"text", "json", "svg", "csv", "trace"};
  const int32_t number = number_of(kForms, std::size(kForms), form, "format");
  return text_of(
      [&](size_t capacity, char* text, size_t* size) {
        return draft(document.c_str(), number, capacity, text, size);
      },
      hetcomm_plan_last_error);
}

}  // namespace

void bind_pipeline(nb::module_& module) {
  module.def(
      "draft_schedule",
      [](const std::string& question, const std::string& format) {
        return drafted(hetcomm_draft_schedule, question, format);
      },
      "question"_a, "format"_a = "json",
      "The answer to a question about a schedule: \"text\", \"json\", \"svg\", \"csv\" or "
      "\"trace\".");
  module.def(
      "draft_pipeline",
      [](const std::string& plan, const std::string& format) {
        return drafted(hetcomm_draft_pipeline, plan, format);
      },
      "plan"_a, "format"_a = "json",
      "What follows from a pipeline plan: \"text\", \"json\" or \"svg\".");
  module.def(
      "draft_forecast",
      [](const std::string& question, const std::string& format) {
        return drafted(hetcomm_draft_forecast, question, format);
      },
      "question"_a, "format"_a = "json",
      "How long a step of a whole plan takes: \"text\", \"json\", \"svg\" or \"trace\".");
  nb::class_<PipelineTensor>(module, "PipelineTensor", "A tensor in a buffer of a pipeline.")
      .def_ro("name", &PipelineTensor::name)
      .def_ro("type", &PipelineTensor::type, "\"float32\", \"bfloat16\" and so on.")
      .def_ro("shape", &PipelineTensor::shape)
      .def_ro(
          "array", &PipelineTensor::array,
          "Its memory, which speaks DLPack and is valid while the pipeline says; None where the "
          "CPU may not touch it. float8 has bytes.")
      .def_ro("memory", &PipelineTensor::memory, "The library's handle of its memory.")
      .def_ro("offset", &PipelineTensor::offset, "Of its first byte in that memory.")
      .def_ro("nbytes", &PipelineTensor::bytes);
  nb::class_<PipelineAction>(module, "PipelineAction", "One step, as its callback gets it.")
      .def_ro("kind", &PipelineAction::kind,
              "\"forward\", \"backward\", \"input_grad\", \"weight_grad\", \"recompute\", "
              "\"reduce_grad\", \"unshard\" or \"reshard\".")
      .def_ro("chunk", &PipelineAction::chunk)
      .def_ro("stage", &PipelineAction::stage)
      .def_ro("micro_batch", &PipelineAction::micro_batch)
      .def_ro("slot", &PipelineAction::slot)
      .def_ro("evaluates", &PipelineAction::evaluates)
      .def_ro("step", &PipelineAction::step)
      .def_ro("length", &PipelineAction::length)
      .def_ro("inputs", &PipelineAction::inputs)
      .def_ro("outputs", &PipelineAction::outputs)
      .def_ro("output_grads", &PipelineAction::output_grads)
      .def_ro("input_grads", &PipelineAction::input_grads);
  static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse_pipeline)},
                                {Py_tp_clear, reinterpret_cast<void*>(&clear_pipeline)},
                                {0, nullptr}};
  nb::class_<Pipeline>(module, "Pipeline", nb::type_slots(slots), nb::is_weak_referenceable(),
                       "Runs the stages of this rank by a pipeline plan, with callbacks.")
      .def(nb::init<nb::object, const std::string&, const std::vector<nb::dict>&, nb::object,
                    std::optional<double>, uint64_t, nb::object>(),
           "communicator"_a, "plan"_a, "chunks"_a, "wrap"_a, "timeout"_a = nb::none(),
           "stream"_a = 0, "pair"_a = nb::none())
      .def("run", &Pipeline::run, "step"_a = 0, "timeout"_a = nb::none(), "evaluate"_a = false,
           "lengths"_a = nb::none(), "One step of the training, or an evaluation.")
      .def("set_schedule", &Pipeline::set_schedule, "plan"_a, "timeout"_a = nb::none(),
           "Replaces the plan between two runs, on all ranks.")
      .def("set_gradients", &Pipeline::set_gradients, "gradients"_a.noconvert(),
           "timeout"_a = nb::none(),
           "gradients: (item, index, layout, array) for each tensor that runs add up.")
      .def("cancel", &Pipeline::cancel, "reason"_a, "Ends the run on all ranks.")
      .def_prop_ro("has_ended", &Pipeline::has_ended, "Whether a run has failed.")
      .def("facts", &Pipeline::facts, "Figures of this rank.")
      .def("trace", &Pipeline::trace, "format"_a = "json",
           "When each step of the last run began and ended: \"json\" or \"chrome\".")
      .def("close", &Pipeline::close, "Later runs of the other ranks fail.");
}

}  // namespace hetcomm_python
