// Binds the process group as a Python module. The module is built for one minor version of PyTorch.
#include <chrono>
#include <memory>
#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <string>
#include <torch/csrc/utils/pybind.h>
#include <utility>
#include <vector>

#include "python/src/torch/living_groups.h"
#include "python/src/torch/process_group.h"
#include "python/src/torch/shared_context.h"
#include "python/src/torch/streams.h"

namespace py = pybind11;

namespace {

using hetcomm::torch_backend::LivingGroups;
using hetcomm::torch_backend::ProcessGroup;
using hetcomm::torch_backend::SharedContext;
using Options = ProcessGroup::Options;
template <typename T>
using Ref = c10::intrusive_ptr<T>;

// A NamedTensor is a tensor on a device whose memory is registered with a context. The registration
// ends with this object.
class NamedTensor {
 public:
  NamedTensor(std::shared_ptr<SharedContext> context, const at::Tensor& tensor)
      : context_(std::move(context)),
        stream_(context_->joint_stream(tensor.device())),
        bytes_(tensor.nbytes()),
        memory_(context_->wrap(tensor)) {}
  NamedTensor(const NamedTensor&) = delete;
  NamedTensor& operator=(const NamedTensor&) = delete;
  ~NamedTensor() {
    if (context_->alive()) SharedContext::unwrap(memory_);
  }
  uint64_t memory() const { return reinterpret_cast<uintptr_t>(memory_); }
  uint64_t bytes() const { return bytes_; }
  uint64_t stream() const { return reinterpret_cast<uintptr_t>(stream_); }

 private:
  const std::shared_ptr<SharedContext> context_;
  hetcomm_stream_t* const stream_;
  const uint64_t bytes_;
  hetcomm_memory_t* const memory_;  // last, so there is no handle if an initializer throws
};

}  // namespace

PYBIND11_MODULE(HETCOMM_TORCH_MODULE, module) {
  // This module defines the base classes of the classes below.
  py::module_::import("torch._C._distributed_c10d");

  py::class_<Options, Ref<Options>, c10d::Backend::Options>(
      module, "Options", "Options of a hetcomm process group, for pg_options.")
      .def(py::init<>())
      .def_readwrite("transports", &Options::transports,
                     "Transports to use, as in \"shm,tcp\"; empty: as configured.")
      .def_readwrite("settings", &Options::settings,
                     "Settings before those of the environment: \"NAME=value;NAME=value\".")
      .def("__copy__", [](const Options& self) { return c10::make_intrusive<Options>(self); })
      .def(
          "__deepcopy__",
          [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); },
          py::arg("memo"));

  py::class_<NamedTensor>(module, "NamedTensor")
      .def_property_readonly("memory", &NamedTensor::memory)
      .def_property_readonly("bytes", &NamedTensor::bytes)
      .def_property_readonly("stream", &NamedTensor::stream);
  py::class_<SharedContext, std::shared_ptr<SharedContext>>(
      module, "SharedContext", "The context of all process groups with the same settings.")
      .def(py::init([] { return SharedContext::get(""); }))
      .def_property_readonly(
          "address",
          [](const SharedContext& self) { return reinterpret_cast<uintptr_t>(self.handle()); })
      .def("name",
           [](const std::shared_ptr<SharedContext>& self, const at::Tensor& tensor) {
             return std::make_unique<NamedTensor>(self, tensor);
           })
      // |like| is any tensor on the device.
      .def(
          "index",
          [](SharedContext& self, const at::Tensor& like) { return self.index(like.device()); },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "bytes",
          [](SharedContext& self, const at::Tensor& like, uintptr_t memory) {
            return self.bytes(like.device(), reinterpret_cast<const hetcomm_memory_t*>(memory));
          },
          py::call_guard<py::gil_scoped_release>())
      .def(
          "stream",
          [](SharedContext& self, const at::Tensor& like) {
            return reinterpret_cast<uintptr_t>(
                self.stream(hetcomm::torch_backend::current_stream(like.device())));
          },
          py::call_guard<py::gil_scoped_release>(),
          "The library's handle for the current stream of the device. 0: the library cannot wait "
          "for "
          "its streams, and the work in this one has ended.");

  py::class_<ProcessGroup, Ref<ProcessGroup>, c10d::Backend> process_group(
      module, "ProcessGroupHetcomm", "The hetcomm backend of one process group.");
  process_group
      .def(py::init([](Ref<c10d::Store> store, int rank, int size, Ref<Options> options) {
             return c10::make_intrusive<ProcessGroup>(std::move(store), rank, size,
                                                      std::move(options));
           }),
           py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("options"),
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("options", &ProcessGroup::options)
      .def_property_readonly("generation", &ProcessGroup::generation,
                             "How often this rank has made this group over its store.")
      .def("abort_with", &ProcessGroup::abort_with, py::arg("reason"),
           py::call_guard<py::gil_scoped_release>(),
           "Ends all operations of the group on all ranks, with this reason.")
      .def(
          "monitored_barrier",
          [](ProcessGroup& self, std::chrono::milliseconds timeout, bool wait_all_ranks) {
            c10d::BarrierOptions options;
            options.timeout = timeout;
            self.monitoredBarrier(options, wait_all_ranks);
          },
          py::arg("timeout") = c10d::kUnsetTimeout, py::arg("wait_all_ranks") = false,
          py::call_guard<py::gil_scoped_release>(),
          "A barrier whose failure names the ranks that did not come.");
  process_group.def(
      "_lend_communicator",
      [](ProcessGroup& self, std::function<void()> forget) {
        return reinterpret_cast<uintptr_t>(self.lend(std::move(forget)));
      },
      py::arg("forget"));
  process_group.def("_context", &ProcessGroup::context);
  // PyTorch calls this on the ranks that a new group excludes, if the default group has a device.
  process_group.def("perform_nocolor_split", [](ProcessGroup&, const py::object&) {});
#if HETCOMM_TORCH_HAS_HOOKS
  process_group.def("_set_hooks", &ProcessGroup::set_hooks, py::arg("attach"));
#endif
  // Newer versions of the base class bind these functions themselves.
#if !HETCOMM_TORCH_HAS_SPLIT
  process_group.def("set_timeout", &ProcessGroup::setTimeout, py::arg("timeout"));
#endif
#if !HETCOMM_TORCH_HAS_ENDS
  process_group.def("abort", &ProcessGroup::abort, py::call_guard<py::gil_scoped_release>())
      .def("shutdown", &ProcessGroup::shutdown, py::call_guard<py::gil_scoped_release>());
#endif

  module.def(
      "create",
      [](const Ref<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
         const std::string& name, const std::vector<int64_t>& ranks, const Ref<Options>& given,
         [[maybe_unused]] bool reconfigure) {
        Ref<Options> options =
            given ? c10::make_intrusive<Options>(*given) : c10::make_intrusive<Options>(timeout);
        options->timeout = timeout;
        options->group_name = name;
        options->global_ranks_in_group.assign(ranks.begin(), ranks.end());
#if HETCOMM_TORCH_HAS_RECONFIGURE
        options->enable_reconfigure = options->enable_reconfigure || reconfigure;
#endif
        return c10::make_intrusive<ProcessGroup>(store, rank, size, std::move(options));
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("name"),
      py::arg("ranks"), py::arg("options"), py::arg("reconfigure"),
      py::call_guard<py::gil_scoped_release>());
  module.def(
      "close_all",
      [](const std::string& reason, const std::string& told) {
        LivingGroups::all().close(reason, told);
      },
      py::arg("reason"), py::arg("told"), py::call_guard<py::gil_scoped_release>(),
      "Shuts down the process groups that there are.");
}
