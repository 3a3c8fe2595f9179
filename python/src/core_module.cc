// Binds the C ABI as a Python module: contexts, communicators, messages, queues and collective
// operations. reshard_module.cc binds resharding, pipeline_module.cc pipelines, and
// device_module.cc devices.
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hetcomm/hetcomm.h>

#include "python/src/device_module.h"
#include "python/src/objects.h"
#include "python/src/pipeline_module.h"
#include "python/src/reshard_module.h"

using nb::literals::operator""_a;

namespace hetcomm_python {
namespace {

constexpr uint32_t kMonitored = HETCOMM_COLLECTIVE_MONITORED;
constexpr uint32_t kWaitAll = HETCOMM_COLLECTIVE_WAIT_ALL;
constexpr uint32_t kExclusive = HETCOMM_COLLECTIVE_EXCLUSIVE;

hetcomm_reduction_t reduction_of(const std::string& name) {
  static constexpr const char* kNames[] = {"sum", "product", "min",     "max",       "and",
                                           "or",  "xor",     "average", "premul_sum"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<hetcomm_reduction_t>(i);
  }
  throw nb::value_error(("there is no reduction '" + name + "'").c_str());
}

// A Queue is one end of a message queue. Requests hold a reference to it, so none is pending when
// it is destroyed.
class Queue {
 public:
  Queue(const Communicator& communicator, int32_t peer, int32_t end, uint64_t max_item_bytes,
        uint32_t depth, uint64_t tag, uint32_t weight, uint64_t max_bytes_per_second)
      : context_(communicator.context()) {
    const hetcomm_queue_options_t options{.struct_size = sizeof(options),
                                          .tag = tag,
                                          .max_item_bytes = max_item_bytes,
                                          .depth = depth,
                                          .weight = weight,
                                          .max_bytes_per_second = max_bytes_per_second};
    check(hetcomm_queue_create(communicator.handle(), peer, end, &options, &handle_));
  }
  ~Queue() {
    const nb::gil_scoped_release unlocked;
    static_cast<void>(hetcomm_queue_destroy(handle_));
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  hetcomm_queue_t* handle() const {
    if (handle_ == nullptr) throw nb::value_error("the queue is closed");
    return handle_;
  }
  const nb::object& context() const { return context_; }
  uint32_t pending() const {
    uint32_t count = 0;
    check(hetcomm_queue_pending(handle(), &count));
    return count;
  }
  void cancel() const { check(hetcomm_queue_cancel(handle())); }
  void drain(std::optional<double> timeout) const {
    hetcomm_queue_t* const own = handle();
    const uint64_t timeout_ns = nanoseconds(timeout);
    hetcomm_status_t status;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_queue_drain(own, timeout_ns);
    }
    check(status);
  }
  void close() {
    if (handle_ == nullptr) return;
    check(hetcomm_queue_destroy(handle_));
    handle_ = nullptr;
  }

 private:
  const nb::object context_;
  hetcomm_queue_t* handle_ = nullptr;
};

// The keyword arguments common to all collective operations.
struct CollectiveArguments {
  CollectiveArguments(std::optional<double> timeout, std::optional<std::string> algorithm_name,
                      double factor, uint32_t flags, hetcomm_stream_t* stream = nullptr)
      : algorithm(std::move(algorithm_name)) {
    options.struct_size = sizeof(options);
    options.timeout_ns = nanoseconds(timeout);
    options.algorithm = algorithm ? algorithm->c_str() : nullptr;
    options.factor = factor;
    options.flags = flags;
    options.stream = stream;
  }
  CollectiveArguments(const CollectiveArguments&) = delete;
  CollectiveArguments& operator=(const CollectiveArguments&) = delete;

  std::optional<std::string> algorithm;
  hetcomm_collective_options_t options{};
};

void require_parts(const Communicator& own, size_t count) {
  if (count != static_cast<size_t>(own.size())) throw nb::value_error("one buffer for each rank");
}

void same_type(nb::dlpack::dtype one, nb::dlpack::dtype other) {
  if (one != other) throw nb::type_error("buffers of different types");
}

template <typename Array>
hetcomm_datatype_t common_type(const std::vector<Array>& arrays) {
  if (arrays.empty()) throw nb::value_error("one buffer for each rank");
  for (const Array& array : arrays) same_type(array.dtype(), arrays[0].dtype());
  return datatype_of(arrays[0].dtype());
}

// Raises a StatusError as an exception of class |type|, which is defined in Python (_error.py).
void translate(const std::exception_ptr& pointer, void* type) {
  try {
    std::rethrow_exception(pointer);
  } catch (const StatusError& error) {
    const nb::object text = nb::str(error.text.c_str());
    const nb::object name = nb::str(hetcomm_status_name(error.status));
    const nb::object exception = nb::handle(static_cast<PyObject*>(type))(name, text);
    if (error.cause.is_valid()) {
      PyException_SetCause(exception.ptr(), nb::object(error.cause).release().ptr());
    }
    PyErr_SetObject(static_cast<PyObject*>(type), exception.ptr());
  }
}

void bind_objects(nb::module_& module) {
  nb::class_<Context> context(module, "Context",
                              "Configuration, devices, transports and progress.");
  context
      .def(nb::init<bool, const std::optional<std::string>&>(), "thread"_a = false,
           "settings"_a = nb::none(),
           "thread: a background thread makes progress too. settings: \"NAME=value;...\", before "
           "the environment.")
      .def_static(
          "_borrow",
          [](uint64_t address, nb::object owner) {
            return std::make_unique<Context>(address, std::move(owner));
          },
          "address"_a, "owner"_a)
      .def(
          "progress", [](const Context& self) { check(hetcomm_context_progress(self.handle())); },
          nb::call_guard<nb::gil_scoped_release>(), "Drives communication once; never blocks.");
  bind_devices(module, context);

  nb::class_<Completion>(module, "Completion", "How an operation ended.")
      .def_ro("status", &Completion::status)
      .def_ro("text", &Completion::text)
      .def_ro("source", &Completion::source, "Rank of the sender.")
      .def_ro("tag", &Completion::tag)
      .def_ro("bytes_sent", &Completion::bytes_sent)
      .def_ro("bytes_received", &Completion::bytes_received);

  nb::class_<Request>(module, "Request",
                      "One asynchronous operation. Keeps its buffers; cancelled when dropped.")
      .def("wait", &Request::wait, "timeout"_a = nb::none(),
           "Waits until it has ended; raises Error when it failed, or after timeout seconds, when "
           "it goes on.")
      .def("test", &Request::test, "True when it has ended; wait() then says how.")
      .def("cancel", &Request::cancel, "Asks to end it.");
}

void bind_communicator(nb::class_<Communicator>& type) {
  type.def_static(
          "from_environment",
          [](nb::object context, const std::string& name,
             const std::optional<std::string>& transports, std::optional<double> timeout,
             uint32_t epoch) {
            hetcomm_bootstrap_t* bootstrap = nullptr;
            hetcomm_context_t* handle = nb::cast<Context&>(context).handle();
            hetcomm_status_t status;
            {
              const nb::gil_scoped_release unlocked;
              status = hetcomm_bootstrap_create_from_environment(handle, &bootstrap);
            }
            check(status);
            return Communicator::create(std::move(context), bootstrap, name, transports, timeout,
                                        epoch);
          },
          "context"_a, "name"_a = "world", "transports"_a = nb::none(), "timeout"_a = nb::none(),
          "epoch"_a = 0, "Of the ranks that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT name.")
      .def_static(
          "from_store",
          [](nb::object context, int32_t rank, int32_t size, nb::object put, nb::object get,
             const std::optional<nb::bytes>& secret, const std::string& name,
             const std::optional<std::string>& transports, std::optional<double> timeout,
             uint32_t epoch, nb::object remove) {
            StoreCallbacks callbacks{std::move(put), std::move(get), std::move(remove)};
            hetcomm_bootstrap_options_t options{};
            options.struct_size = sizeof(options);
            options.rank = rank;
            options.size = size;
            options.put = &StoreCallbacks::call_put;
            options.get = &StoreCallbacks::call_get;
            if (callbacks.can_delete()) options.delete_key = &StoreCallbacks::call_delete;
            options.user_data = &callbacks;
            options.secret = secret ? secret->c_str() : nullptr;
            options.secret_size = secret ? secret->size() : 0;
            hetcomm_bootstrap_t* bootstrap = nullptr;
            check(hetcomm_bootstrap_create_from_callbacks(nb::cast<Context&>(context).handle(),
                                                          &options, &bootstrap));
            try {
              auto made = Communicator::create(std::move(context), bootstrap, name, transports,
                                               timeout, epoch);
              callbacks.raise_interruption();
              return made;
            } catch (StatusError& error) {
              callbacks.raise_interruption();
              throw callbacks.explained(std::move(error));
            }
          },
          "context"_a, "rank"_a, "size"_a, "put"_a, "get"_a, "secret"_a = nb::none(),
          "name"_a = "world", "transports"_a = nb::none(), "timeout"_a = nb::none(), "epoch"_a = 0,
          "delete"_a = nb::none(),
          "Of ranks that find each other by put(key, bytes) and get(key, seconds), which gives the "
          "bytes or, when they did not come in time, None. delete(key) removes the random key of a "
          "job without a secret once all ranks have it. What these raise is the cause of the "
          "Error.")
      .def_static("_borrow", &Communicator::borrow, "address"_a, "owner"_a)
      .def_prop_ro("_context", &Communicator::context)
      .def_prop_ro("closed", &Communicator::closed)
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("size", &Communicator::size)
      .def(
          "split",
          [](nb::object self, int32_t color, int32_t key) -> std::unique_ptr<Communicator> {
            hetcomm_communicator_t* parent = nb::cast<Communicator&>(self).handle();
            hetcomm_communicator_t* handle = nullptr;
            hetcomm_status_t status;
            {
              const nb::gil_scoped_release unlocked;
              status = hetcomm_communicator_split(parent, color, key, &handle);
            }
            check(status);
            if (handle == nullptr) return nullptr;
            return std::make_unique<Communicator>(handle, std::move(self));
          },
          "color"_a, "key"_a = 0,
          "One communicator for each color; None for those with a color of -1.")
      .def(
          "abort",
          [](const Communicator& self, const std::string& reason) {
            check(hetcomm_communicator_abort(self.handle(), reason.c_str()));
          },
          "reason"_a, "Ends all operations on all ranks.")
      .def("close", &Communicator::close_with_plans,
           "Says goodbye; the communicator cannot be used any more.")
      .def(
          "send",
          [](const Communicator& self, Input buffer, int32_t destination, uint64_t tag,
             std::optional<double> timeout) {
            hetcomm_operation_options_t options{};
            options.struct_size = sizeof(options);
            options.timeout_ns = nanoseconds(timeout);
            options.stream = stream_of(buffer);
            hetcomm_communicator_t* handle = self.handle();
            const hetcomm_buffer_t bytes = buffer_of(buffer);
            return start(keep(buffer), [&](hetcomm_request_t** request) {
              return hetcomm_send(handle, destination, tag, bytes, &options, request);
            });
          },
          "buffer"_a.noconvert(), "destination"_a, "tag"_a = 0, "timeout"_a = nb::none(),
          kKeepsCommunicator)
      .def(
          "recv",
          [](const Communicator& self, Output buffer, std::optional<int32_t> source,
             std::optional<uint64_t> tag, std::optional<double> timeout) {
            hetcomm_operation_options_t options{};
            options.struct_size = sizeof(options);
            options.timeout_ns = nanoseconds(timeout);
            options.stream = stream_of(buffer);
            hetcomm_communicator_t* handle = self.handle();
            const hetcomm_buffer_t bytes = buffer_of(buffer);
            return start(keep(buffer), [&](hetcomm_request_t** request) {
              return hetcomm_recv(handle, source.value_or(HETCOMM_ANY_SOURCE), tag.value_or(0),
                                  tag ? HETCOMM_EXACT_TAG : HETCOMM_ANY_TAG, bytes, &options,
                                  request);
            });
          },
          "buffer"_a.noconvert(), "source"_a = nb::none(), "tag"_a.none() = 0,
          "timeout"_a = nb::none(), kKeepsCommunicator,
          "source None: from any rank; tag None: any tag.");
}

void bind_queues(nb::module_& module, nb::class_<Communicator>& communicator) {
  communicator
      .def(
          "push_queue",
          [](const Communicator& self, int32_t peer, uint64_t max_item_bytes, uint32_t depth,
             uint64_t tag, uint32_t weight, uint64_t max_bytes_per_second) {
            return std::make_unique<Queue>(self, peer, HETCOMM_QUEUE_PUSH, max_item_bytes, depth,
                                           tag, weight, max_bytes_per_second);
          },
          "peer"_a, "max_item_bytes"_a, "depth"_a = 4, "tag"_a = 0, "weight"_a = 1,
          "max_bytes_per_second"_a = 0, kKeepsCommunicator,
          "The end of a queue to rank peer that this rank pushes into. Needs Context(thread=True). "
          "Queues over one network interface share it by weight; max_bytes_per_second 0: no "
          "limit.")
      .def(
          "pull_queue",
          [](const Communicator& self, int32_t peer, uint64_t max_item_bytes, uint32_t depth,
             uint64_t tag) {
            return std::make_unique<Queue>(self, peer, HETCOMM_QUEUE_PULL, max_item_bytes, depth,
                                           tag, 0, 0);
          },
          "peer"_a, "max_item_bytes"_a, "depth"_a = 4, "tag"_a = 0, kKeepsCommunicator,
          "The end of a queue from rank peer that this rank pulls from.");
  nb::class_<Queue>(module, "Queue",
                    "One end of an ordered, bounded way to another rank, which moves items while "
                    "both ranks compute.")
      .def(
          "push",
          [](const Queue& self, Input buffer, std::optional<double> timeout) {
            hetcomm_operation_options_t options{};
            options.struct_size = sizeof(options);
            options.timeout_ns = nanoseconds(timeout);
            options.stream = stream_of(buffer);
            hetcomm_queue_t* handle = self.handle();
            const hetcomm_buffer_t bytes = buffer_of(buffer);
            return start(keep(buffer), [&](hetcomm_request_t** request) {
              return hetcomm_queue_push(handle, bytes, &options, request);
            });
          },
          "buffer"_a.noconvert(), "timeout"_a = nb::none(), kKeepsCommunicator,
          "Pushes the next item. BUSY when as many as the depth are under way: wait for the "
          "oldest.")
      .def(
          "pull",
          [](const Queue& self, Output buffer, std::optional<double> timeout) {
            hetcomm_operation_options_t options{};
            options.struct_size = sizeof(options);
            options.timeout_ns = nanoseconds(timeout);
            options.stream = stream_of(buffer);
            hetcomm_queue_t* handle = self.handle();
            const hetcomm_buffer_t bytes = buffer_of(buffer);
            return start(keep(buffer), [&](hetcomm_request_t** request) {
              return hetcomm_queue_pull(handle, bytes, &options, request);
            });
          },
          "buffer"_a.noconvert(), "timeout"_a = nb::none(), kKeepsCommunicator,
          "Pulls the next item into the buffer; wait() says how long it is. Post the next pull "
          "before you work on an item.")
      .def_prop_ro("_context", &Queue::context)
      .def_prop_ro("pending", &Queue::pending, "Items under way at this end.")
      .def("drain", &Queue::drain, "timeout"_a = nb::none(), "Waits until none is.")
      .def("cancel", &Queue::cancel, "Asks to end all items under way.")
      .def("close", &Queue::close, "The other end's items end with ABORTED.");
}

void bind_collectives(nb::class_<Communicator>& type) {
  using Seconds = std::optional<double>;
  using Name = std::optional<std::string>;
  type.def(
          "barrier",
          [](const Communicator& self, Seconds timeout, Name algorithm, bool monitored,
             bool wait_all) {
            const uint32_t flags = (monitored ? kMonitored : 0) | (wait_all ? kWaitAll : 0);
            const CollectiveArguments common(timeout, std::move(algorithm), 1, flags);
            hetcomm_communicator_t* handle = self.handle();
            return start(nb::none(), [&](hetcomm_request_t** request) {
              return hetcomm_barrier(handle, &common.options, request);
            });
          },
          "timeout"_a = nb::none(), kKeepsCommunicator, "algorithm"_a = nb::none(),
          "monitored"_a = false, "wait_all"_a = false, "Ends when all ranks have called it.")
      .def(
          "broadcast",
          [](const Communicator& self, Output buffer, int32_t root, Seconds timeout,
             Name algorithm) {
            const CollectiveArguments common(timeout, std::move(algorithm), 1, 0,
                                             stream_of(buffer));
            hetcomm_communicator_t* handle = self.handle();
            const hetcomm_buffer_t bytes = buffer_of(buffer);
            const hetcomm_datatype_t datatype = datatype_of(buffer.dtype());
            return start(keep(buffer), [&](hetcomm_request_t** request) {
              return hetcomm_broadcast(handle, root, bytes, datatype, &common.options, request);
            });
          },
          "buffer"_a.noconvert(), "root"_a = 0, "timeout"_a = nb::none(), kKeepsCommunicator,
          "algorithm"_a = nb::none())
      .def(
          "reduce",
          [](const Communicator& self, Input send, Output recv, int32_t root, const std::string& op,
             double factor, Seconds timeout, Name algorithm) {
            same_type(send.dtype(), recv.dtype());
            const CollectiveArguments common(timeout, std::move(algorithm), factor, 0,
                                             stream_of(send, recv));
            hetcomm_communicator_t* handle = self.handle();
            const hetcomm_buffer_t from = buffer_of(send);
            const hetcomm_buffer_t to = buffer_of(recv);
            const hetcomm_datatype_t datatype = datatype_of(send.dtype());
            const hetcomm_reduction_t reduction = reduction_of(op);
            return start(keep(send, recv), [&](hetcomm_request_t** request) {
              return hetcomm_reduce(handle, root, from, to, datatype, reduction, &common.options,
                                    request);
            });
          },
          "send"_a.noconvert(), "recv"_a.noconvert(), "root"_a = 0, "op"_a = "sum",
          "factor"_a = 1.0, "timeout"_a = nb::none(), kKeepsCommunicator,
          "algorithm"_a = nb::none())
      .def(
          "alltoallv",
          [](const Communicator& self, const std::vector<Input>& sends,
             const std::vector<Output>& recvs, Seconds timeout, Name algorithm) {
            require_parts(self, sends.size());
            require_parts(self, recvs.size());
            const hetcomm_datatype_t datatype = common_type(sends);
            same_type(sends[0].dtype(), recvs[0].dtype());
            common_type(recvs);
            const CollectiveArguments common(timeout, std::move(algorithm), 1, 0,
                                             stream_of(sends, recvs));
            hetcomm_communicator_t* handle = self.handle();
            const std::vector<hetcomm_buffer_t> from = buffers_of(sends);
            const std::vector<hetcomm_buffer_t> to = buffers_of(recvs);
            return start(keep(nb::cast(sends), nb::cast(recvs)), [&](hetcomm_request_t** request) {
              return hetcomm_alltoallv(handle, from.data(), to.data(), datatype, &common.options,
                                       request);
            });
          },
          "sends"_a.noconvert(), "recvs"_a.noconvert(), "timeout"_a = nb::none(),
          kKeepsCommunicator, "algorithm"_a = nb::none(),
          "One buffer for each rank, of any length.");
}

// Binds an operation with one send buffer and one receive buffer.
template <typename Function>
void bind_move(nb::class_<Communicator>& type, const char* name, Function function,
               const char* text) {
  type.def(
      name,
      [function](const Communicator& self, Input send, Output recv, std::optional<double> timeout,
                 std::optional<std::string> algorithm) {
        same_type(send.dtype(), recv.dtype());
        const CollectiveArguments common(timeout, std::move(algorithm), 1, 0,
                                         stream_of(send, recv));
        hetcomm_communicator_t* handle = self.handle();
        const hetcomm_buffer_t from = buffer_of(send);
        const hetcomm_buffer_t to = buffer_of(recv);
        const hetcomm_datatype_t datatype = datatype_of(send.dtype());
        return start(keep(send, recv), [&](hetcomm_request_t** request) {
          return function(handle, from, to, datatype, &common.options, request);
        });
      },
      "send"_a.noconvert(), "recv"_a.noconvert(), "timeout"_a = nb::none(), kKeepsCommunicator,
      "algorithm"_a = nb::none(), text);
}

template <typename Function>
void bind_rooted(nb::class_<Communicator>& type, const char* name, Function function,
                 const char* text) {
  type.def(
      name,
      [function](const Communicator& self, std::optional<Input> send, std::optional<Output> recv,
                 int32_t root, std::optional<double> timeout,
                 std::optional<std::string> algorithm) {
        if (!send && !recv) throw nb::value_error("neither a buffer to send nor one to receive");
        if (send && recv) same_type(send->dtype(), recv->dtype());
        const CollectiveArguments common(timeout, std::move(algorithm), 1, 0,
                                         stream_of(send, recv));
        hetcomm_communicator_t* handle = self.handle();
        const hetcomm_buffer_t none = hetcomm_buffer_host(nullptr, 0);
        const hetcomm_buffer_t from = send ? buffer_of(*send) : none;
        const hetcomm_buffer_t to = recv ? buffer_of(*recv) : none;
        const hetcomm_datatype_t datatype = datatype_of(send ? send->dtype() : recv->dtype());
        return start(keep(send, recv), [&](hetcomm_request_t** request) {
          return function(handle, root, from, to, datatype, &common.options, request);
        });
      },
      "send"_a.noconvert().none(), "recv"_a.noconvert().none(), "root"_a = 0,
      "timeout"_a = nb::none(), kKeepsCommunicator, "algorithm"_a = nb::none(), text);
}

template <typename Function>
void bind_reduction(nb::class_<Communicator>& type, const char* name, Function function,
                    const char* text) {
  type.def(
      name,
      [function](const Communicator& self, Input send, Output recv, const std::string& op,
                 double factor, bool exclusive, std::optional<double> timeout,
                 std::optional<std::string> algorithm) {
        same_type(send.dtype(), recv.dtype());
        const CollectiveArguments common(timeout, std::move(algorithm), factor,
                                         exclusive ? kExclusive : 0, stream_of(send, recv));
        hetcomm_communicator_t* handle = self.handle();
        const hetcomm_buffer_t from = buffer_of(send);
        const hetcomm_buffer_t to = buffer_of(recv);
        const hetcomm_datatype_t datatype = datatype_of(send.dtype());
        const hetcomm_reduction_t reduction = reduction_of(op);
        return start(keep(send, recv), [&](hetcomm_request_t** request) {
          return function(handle, from, to, datatype, reduction, &common.options, request);
        });
      },
      "send"_a.noconvert(), "recv"_a.noconvert(), "op"_a = "sum", "factor"_a = 1.0,
      "exclusive"_a = false, "timeout"_a = nb::none(), kKeepsCommunicator,
      "algorithm"_a = nb::none(), text);
}

}  // namespace
}  // namespace hetcomm_python

using namespace hetcomm_python;  // NOLINT: the macro below makes functions outside of it

NB_MODULE(_core, module) {
  module.doc() = "The C ABI of hetcomm.";
  const nb::object error = nb::module_::import_("hetcomm._error").attr("Error");
  nb::register_exception_translator(&translate, error.ptr());
  module.attr("Error") = error;
  module.def(
      "version", [] { return std::string(hetcomm_version_string()); }, "Version of the library.");
  module.def(
      "build", [] { return std::string(hetcomm_build_string()); },
      "Compiler and options of the library.");
  bind_objects(module);
  nb::class_<Communicator> communicator(module, "Communicator", nb::is_weak_referenceable(),
                                        "Ranks that exchange messages. Collective calls come in "
                                        "the same order on all of them.");
  bind_communicator(communicator);
  bind_queues(module, communicator);
  bind_reshard(module);
  bind_pipeline(module);
  bind_collectives(communicator);
  bind_move(communicator, "allgather", &hetcomm_allgather, "Parts of all ranks, on all ranks.");
  bind_move(communicator, "alltoall", &hetcomm_alltoall,
            "Part i of rank j becomes part j of rank i.");
  bind_rooted(communicator, "gather", &hetcomm_gather,
              "Parts of all ranks at the root; recv is None elsewhere.");
  bind_rooted(communicator, "scatter", &hetcomm_scatter,
              "Parts of the root's send, one for each rank; send is None elsewhere.");
  bind_reduction(communicator, "allreduce", &hetcomm_allreduce,
                 "op: sum, product, min, max, and, or, xor, average, premul_sum (by factor).");
  bind_reduction(communicator, "reduce_scatter", &hetcomm_reduce_scatter,
                 "The reduction of all ranks; each gets its part.");
  bind_reduction(communicator, "scan", &hetcomm_scan,
                 "The reduction of the ranks up to this one; exclusive: without it.");
}
