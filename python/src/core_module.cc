// The Python module of the C ABI: contexts, communicators, messages, collective operations.
//
// Buffers are whatever offers DLPack or Python's buffer protocol, in host memory and contiguous:
// arguments are taken as they are (noconvert), since results must not land in a converted copy. An
// object that refuses to be exported raises its own exception. A request keeps its buffers until it
// is done; one that is dropped before is cancelled. Any number of threads may wait for one request,
// and all of them get its result. No call that may wait holds Python's lock.
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

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace {

// Takes the exception that is being raised from Python, with its traceback.
nb::object take_exception() {
#if PY_VERSION_HEX >= 0x030C0000
  return nb::steal(PyErr_GetRaisedException());
#else
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value != nullptr && traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return nb::steal(value);
#endif
}

nb::object take_exception(nb::python_error& error) {
  error.restore();
  return take_exception();
}

[[noreturn]] void raise(const nb::object& exception) {
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

// "ValueError: what it says".
std::string described(const nb::object& exception) {
  std::string text = Py_TYPE(exception.ptr())->tp_name;
  const nb::object said = nb::steal(PyObject_Str(exception.ptr()));
  const char* characters = said.is_valid() ? PyUnicode_AsUTF8(said.ptr()) : nullptr;
  if (characters == nullptr) {
    PyErr_Clear();
  } else if (characters[0] != '\0') {
    text.append(": ").append(characters);
  }
  return text;
}

// An array that a caller gives. Of one that refuses to be exported the exception is kept, and
// raised where the array is used: nanobind's conversions cannot raise.
template <typename Array>
class HostArray {
 public:
  void set(Array&& array) {
    array_ = std::move(array);
    refusal_.reset();
  }
  void set_refusal(nb::object exception) { refusal_ = std::move(exception); }
  const Array& get() const {
    if (refusal_.is_valid()) [[unlikely]]
      raise(refusal_);
    return array_;
  }
  nb::dlpack::dtype dtype() const { return get().dtype(); }

 private:
  Array array_;
  nb::object refusal_;
};

using Input = HostArray<nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>>;
using Output = HostArray<nb::ndarray<nb::c_contig, nb::device::cpu>>;

// A versioned capsule says whether memory is read-only. Older nanobind does not take it.
constexpr bool kVersionedCapsules = NB_VERSION_MAJOR >= 3;

// Makes a name that lives for ever.
nb::handle interned(const char* name) { return PyUnicode_InternFromString(name); }

// Returns nothing if there is no such attribute.
nb::object find_attribute(nb::handle object, nb::handle name) {
  nb::object found = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (!found.is_valid()) PyErr_Clear();
  return found;
}

// Nothing: an exception is being raised.
nb::object call_dlpack(nb::handle dlpack, bool versioned) {
  if (!versioned) return nb::steal(PyObject_CallNoArgs(dlpack.ptr()));
  static const nb::handle kNames = nb::make_tuple(interned("max_version")).release();
  static const nb::handle kVersion = nb::make_tuple(1, 0).release();
  PyObject* const arguments[] = {kVersion.ptr()};
  return nb::steal(PyObject_Vectorcall(dlpack.ptr(), arguments, 0, kNames.ptr()));
}

// Calls an object's method __dlpack__. An object that does not know versions is asked without one.
// An object with read-only memory may export it only with one.
nb::object export_capsule(nb::handle dlpack, bool writable) {
  const bool versioned = kVersionedCapsules && writable;
  nb::object capsule = call_dlpack(dlpack, versioned);
  if (capsule.is_valid() || !kVersionedCapsules) return capsule;
  const bool refused = PyErr_ExceptionMatches(PyExc_BufferError) != 0;
  if (!refused && PyErr_ExceptionMatches(PyExc_TypeError) == 0) return {};
  const nb::object first = take_exception();
  capsule = call_dlpack(dlpack, !versioned);
  if (!capsule.is_valid() && refused && PyErr_ExceptionMatches(PyExc_TypeError) != 0) {
    PyErr_SetObject(first.type().ptr(), first.ptr());
  }
  return capsule;
}

// torch exports tensors with the negative bit as if they had none. False: an exception is being
// raised.
bool holds_its_values(nb::handle exporter) {
  static const nb::handle kIsNegative = interned("is_neg");
  const nb::object method = find_attribute(exporter, kIsNegative);
  if (!method.is_valid()) return true;
  const nb::object negative = nb::steal(PyObject_CallNoArgs(method.ptr()));
  const int answer = negative.is_valid() ? PyObject_IsTrue(negative.ptr()) : -1;
  if (answer > 0) {
    PyErr_SetString(PyExc_BufferError,
                    "the memory of a tensor with the negative bit set holds other values than the "
                    "tensor; use tensor.resolve_neg()");
  }
  return answer == 0;
}

}  // namespace

// nanobind takes what refuses DLPack by other ways: by the buffer protocol, which tells the truth
// about memory, or else by torch's function to_dlpack, which does not ask for conjugation and
// gradients. So objects without the buffer protocol are asked here.
template <typename Array>
struct nanobind::detail::type_caster<HostArray<Array>> {
  NB_TYPE_CASTER(HostArray<Array>, make_caster<Array>::Name)

  template <typename Flags>
  bool from_python(handle source, Flags flags, cleanup_list* cleanup) noexcept {
    if (PyObject_CheckBuffer(source.ptr())) [[likely]]
      return take(source, flags, cleanup);
    static const handle kDlpack = interned("__dlpack__");
    const object dlpack = find_attribute(source, kDlpack);
    if (!dlpack.is_valid()) return take(source, flags, cleanup);
    object capsule;
    if (holds_its_values(source)) {
      capsule = export_capsule(dlpack, !std::is_same_v<HostArray<Array>, Input>);
    }
    if (capsule.is_valid()) return take(capsule, flags, cleanup);
    value.set_refusal(take_exception());
    return true;
  }

  // An object that keeps the memory.
  static handle from_cpp(const HostArray<Array>& array, rv_policy /*policy*/,
                         cleanup_list* cleanup) noexcept {
    return make_caster<Array>::from_cpp(array.get(), rv_policy::reference, cleanup);
  }

 private:
  template <typename Flags>
  bool take(handle source, Flags flags, cleanup_list* cleanup) noexcept {
    make_caster<Array> caster;
    if (!caster.from_python(source, flags, cleanup)) return false;
    value.set(std::move(caster.value));
    return true;
  }
};

namespace {

// A function that returns a request has this policy: the communicator outlives the request.
constexpr nb::keep_alive<0, 1> kKeepsCommunicator;

constexpr uint32_t kMonitored = HETCOMM_COLLECTIVE_MONITORED;
constexpr uint32_t kWaitAll = HETCOMM_COLLECTIVE_WAIT_ALL;
constexpr uint32_t kExclusive = HETCOMM_COLLECTIVE_EXCLUSIVE;

struct StatusError {
  hetcomm_status_t status;
  std::string text;
  nb::object cause{};
};

[[noreturn]] void fail(hetcomm_status_t status) {
  const char* detail = hetcomm_last_error();
  throw StatusError{status, detail[0] != '\0' ? detail : hetcomm_status_text(status)};
}

void check(hetcomm_status_t status) {
  if (status != HETCOMM_OK) fail(status);
}

// Seconds as the C ABI counts. None: the default; infinity: no limit.
uint64_t nanoseconds(std::optional<double> seconds) {
  if (!seconds) return HETCOMM_TIMEOUT_DEFAULT;
  if (!(*seconds < 1e9)) return HETCOMM_TIMEOUT_INFINITE;
  if (*seconds <= 0) return HETCOMM_TIMEOUT_POLL;
  return std::max<uint64_t>(static_cast<uint64_t>(*seconds * 1e9), 2);
}

template <typename Array>
hetcomm_buffer_t buffer_of(const Array& array) {
  static constexpr char kNowhere = 0;
  const auto& memory = array.get();
  if (memory.nbytes() == 0) return hetcomm_buffer_host(&kNowhere, 0);
  return hetcomm_buffer_host(memory.data(), memory.nbytes());
}

template <typename Array>
std::vector<hetcomm_buffer_t> buffers_of(const std::vector<Array>& arrays) {
  std::vector<hetcomm_buffer_t> buffers;
  for (const Array& array : arrays) buffers.push_back(buffer_of(array));
  return buffers;
}

hetcomm_datatype_t datatype_of(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  // DLPack 1.1 defines these; the header of nanobind may be older.
  constexpr uint8_t kFloat8E4m3fn = 10;
  constexpr uint8_t kFloat8E5m2 = 12;
  const auto by_size = [&](hetcomm_datatype_t one, hetcomm_datatype_t two, hetcomm_datatype_t four,
                           hetcomm_datatype_t eight) -> hetcomm_datatype_t {
    switch (type.bits) {
      case 8:
        return one;
      case 16:
        return two;
      case 32:
        return four;
      case 64:
        return eight;
      default:
        return -1;
    }
  };
  hetcomm_datatype_t found = -1;
  if (type.lanes == 1) {
    if (type.code == static_cast<uint8_t>(Code::Int)) {
      found = by_size(HETCOMM_INT8, HETCOMM_INT16, HETCOMM_INT32, HETCOMM_INT64);
    } else if (type.code == static_cast<uint8_t>(Code::UInt)) {
      found = by_size(HETCOMM_UINT8, HETCOMM_UINT16, HETCOMM_UINT32, HETCOMM_UINT64);
    } else if (type.code == static_cast<uint8_t>(Code::Float)) {
      found = by_size(-1, HETCOMM_FLOAT16, HETCOMM_FLOAT32, HETCOMM_FLOAT64);
    } else if (type.code == static_cast<uint8_t>(Code::Bfloat)) {
      found = by_size(-1, HETCOMM_BFLOAT16, -1, -1);
    } else if (type.code == static_cast<uint8_t>(Code::Bool)) {
      found = by_size(HETCOMM_BOOL, -1, -1, -1);
    } else if (type.code == static_cast<uint8_t>(Code::Complex)) {
      if (type.bits == 64) found = HETCOMM_COMPLEX64;
      if (type.bits == 128) found = HETCOMM_COMPLEX128;
    } else if (type.code == kFloat8E4m3fn) {
      found = by_size(HETCOMM_FLOAT8_E4M3FN, -1, -1, -1);
    } else if (type.code == kFloat8E5m2) {
      found = by_size(HETCOMM_FLOAT8_E5M2, -1, -1, -1);
    }
  }
  if (found < 0) throw nb::type_error("hetcomm has no type like that of these elements");
  return found;
}

hetcomm_reduction_t reduction_of(const std::string& name) {
  static constexpr const char* kNames[] = {"sum", "product", "min",     "max",       "and",
                                           "or",  "xor",     "average", "premul_sum"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<hetcomm_reduction_t>(i);
  }
  throw nb::value_error(("there is no reduction '" + name + "'").c_str());
}

// --- objects -----------------------------------------------------------------------------------

class Context {
 public:
  Context(bool thread, const std::optional<std::string>& settings) {
    hetcomm_context_options_t options{};
    options.struct_size = sizeof(options);
    options.progress = thread ? HETCOMM_PROGRESS_THREAD : HETCOMM_PROGRESS_DEFAULT;
    options.settings = settings ? settings->c_str() : nullptr;
    check(hetcomm_context_create(&options, &handle_));
  }
  ~Context() {
    const nb::gil_scoped_release unlocked;
    static_cast<void>(hetcomm_context_destroy(handle_));
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  hetcomm_context_t* handle() const { return handle_; }

 private:
  hetcomm_context_t* handle_ = nullptr;
};

struct Completion {
  std::string status;
  std::string text;
  int32_t source;
  uint64_t tag;
  uint64_t bytes_sent;
  uint64_t bytes_received;
};

Completion completion_of(const hetcomm_completion_t& completion) {
  return {.status = hetcomm_status_name(completion.status),
          .text = completion.text == nullptr ? "" : completion.text,
          .source = completion.source,
          .tag = completion.tag,
          .bytes_sent = completion.bytes_sent,
          .bytes_received = completion.bytes_received};
}

class Request {
 public:
  Request(hetcomm_request_t* handle, nb::object kept) : handle_(handle), kept_(std::move(kept)) {}
  ~Request() {
    if (done_) return;
    // Its memory must be quiet before the buffers go.
    const nb::gil_scoped_release unlocked;
    static_cast<void>(hetcomm_request_cancel(handle_));
    static_cast<void>(hetcomm_request_wait(handle_, HETCOMM_TIMEOUT_INFINITE, nullptr));
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;

  Completion wait(std::optional<double> timeout) {
    if (!done_) {
      const uint64_t timeout_ns = timeout ? nanoseconds(timeout) : HETCOMM_TIMEOUT_INFINITE;
      ask([&](hetcomm_completion_t* completion) {
        const nb::gil_scoped_release unlocked;
        return hetcomm_request_wait(handle_, timeout_ns, completion);
      });
    }
    return result();
  }

  bool test() {
    return done_ || ask([&](hetcomm_completion_t* completion) {
             return hetcomm_request_test(handle_, completion);
           });
  }

  void cancel() {
    if (done_) return;
    const hetcomm_status_t status = hetcomm_request_cancel(handle_);
    // Another thread has the report already: nothing is left to be cancelled.
    if (status == HETCOMM_STALE_HANDLE && asking_ > 0) return;
    check(status);
  }

 private:
  // Completes the request by what |call| reports; false when it is still pending. The library
  // reports to one thread only: the others wait for that one, which needs Python's lock to pass the
  // report on.
  template <typename Call>
  bool ask(Call&& call) {
    hetcomm_completion_t completion{};
    ++asking_;
    const hetcomm_status_t status = call(&completion);
    if (status == HETCOMM_OK) finish(completion);
    --asking_;
    if (sleeping_ > 0) {
      changes_.fetch_add(1, std::memory_order_relaxed);
      changes_.notify_all();
    }
    if (status == HETCOMM_OK) [[likely]]
      return true;
    if (status == HETCOMM_PENDING) return done_;
    while (status == HETCOMM_STALE_HANDLE && !done_ && asking_ > 0) {
      const uint32_t seen = changes_.load(std::memory_order_relaxed);
      ++sleeping_;
      {
        const nb::gil_scoped_release unlocked;
        changes_.wait(seen, std::memory_order_relaxed);
      }
      --sleeping_;
    }
    if (!done_) check(status);
    return true;
  }

  void finish(const hetcomm_completion_t& completion) {
    status_ = completion.status;
    completion_ = completion_of(completion);
    done_ = true;
    kept_ = nb::none();
  }
  Completion result() const {
    if (status_ != HETCOMM_OK) {
      throw StatusError{status_,
                        completion_.text.empty() ? hetcomm_status_text(status_) : completion_.text};
    }
    return completion_;
  }

  hetcomm_request_t* const handle_;
  nb::object kept_;
  // Python's lock guards these, and is held where changes_ is counted up: whoever sees that it has
  // to sleep cannot miss the change that wakes it.
  bool done_ = false;
  int asking_ = 0;  // threads without the library's answer, or whose answer is not kept yet
  int sleeping_ = 0;
  hetcomm_status_t status_ = HETCOMM_OK;
  Completion completion_{};
  std::atomic<uint32_t> changes_{0};  // of the above, while a thread sleeps
};

using RequestPtr = std::unique_ptr<Request>;

// Functions of the caller's by which ranks find each other. They are called on the thread that
// makes the communicator, which raises what they raised.
class StoreCallbacks {
 public:
  StoreCallbacks(nb::object put, nb::object get, nb::object remove)
      : put_(std::move(put)), get_(std::move(get)), delete_(std::move(remove)) {}

  bool can_delete() const { return !delete_.is_none(); }

  static hetcomm_status_t call_put(void* self, const char* key, const void* value, size_t size) {
    auto& own = *static_cast<StoreCallbacks*>(self);
    const nb::gil_scoped_acquire locked;
    try {
      own.put_(nb::str(key), nb::bytes(value, size));
      return HETCOMM_OK;
    } catch (nb::python_error& error) {
      return own.failed("put", error);
    }
  }

  static hetcomm_status_t call_delete(void* self, const char* key) {
    auto& own = *static_cast<StoreCallbacks*>(self);
    const nb::gil_scoped_acquire locked;
    try {
      own.delete_(nb::str(key));
      return HETCOMM_OK;
    } catch (nb::python_error& error) {
      return own.failed("delete", error);
    }
  }

  // get(key, seconds) gives the bytes, or None when they did not come in time.
  static hetcomm_status_t call_get(void* self, const char* key, void* value, size_t* inout_size,
                                   uint64_t timeout_ns) {
    auto& own = *static_cast<StoreCallbacks*>(self);
    const nb::gil_scoped_acquire locked;
    // A rank that is to stop tells the others by put, and waits for no rank.
    if (own.interrupted()) return HETCOMM_BOOTSTRAP_FAILED;
    try {
      const nb::object found = own.get_(nb::str(key), static_cast<double>(timeout_ns) * 1e-9);
      if (found.is_none()) return HETCOMM_TIMED_OUT;
      if (!nb::isinstance<nb::bytes>(found)) {
        PyErr_Format(PyExc_TypeError,
                     "get('%s') returned an object of type %s; it must return bytes, or None when "
                     "they did not come in time",
                     key, Py_TYPE(found.ptr())->tp_name);
        throw nb::python_error();
      }
      const auto bytes = nb::borrow<nb::bytes>(found);
      if (bytes.size() <= *inout_size) std::memcpy(value, bytes.c_str(), bytes.size());
      *inout_size = bytes.size();
      return HETCOMM_OK;
    } catch (nb::python_error& error) {
      return own.failed("get", error);
    }
  }

  // Raises what the callbacks raised, whether or not the communicator was made.
  void raise_interruption() const {
    if (interrupted()) raise(raised_);
  }
  // |error| and what was behind it.
  StatusError explained(StatusError error) const {
    if (!raised_.is_valid()) return error;
    error.text.append(": ").append(name_).append(" raised ").append(described(raised_));
    error.cause = raised_;
    return error;
  }

 private:
  // Keeps the first exception, or the first that is to stop the program.
  hetcomm_status_t failed(const char* name, nb::python_error& error) {
    nb::object exception = take_exception(error);
    if (!raised_.is_valid() || (!interrupted() && stops_program(exception))) {
      name_ = name;
      raised_ = std::move(exception);
    }
    return HETCOMM_BOOTSTRAP_FAILED;
  }

  // KeyboardInterrupt, SystemExit and their like.
  static bool stops_program(const nb::object& exception) {
    return PyErr_GivenExceptionMatches(exception.ptr(), PyExc_Exception) == 0;
  }
  bool interrupted() const { return raised_.is_valid() && stops_program(raised_); }

  const nb::object put_;
  const nb::object get_;
  const nb::object delete_;
  const char* name_ = "";
  nb::object raised_;
};

class Communicator {
 public:
  Communicator(hetcomm_communicator_t* handle, nb::object parent)
      : handle_(handle), parent_(std::move(parent)) {}
  ~Communicator() {
    const nb::gil_scoped_release unlocked;
    static_cast<void>(hetcomm_communicator_destroy(handle_));
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  static std::unique_ptr<Communicator> create(nb::object context, hetcomm_bootstrap_t* bootstrap,
                                              const std::string& name,
                                              const std::optional<std::string>& transports,
                                              std::optional<double> timeout, uint32_t epoch) {
    hetcomm_communicator_options_t options{};
    options.struct_size = sizeof(options);
    options.name = name.c_str();
    options.epoch = epoch;
    options.transports = transports ? transports->c_str() : nullptr;
    options.timeout_ns = nanoseconds(timeout);
    hetcomm_communicator_t* handle = nullptr;
    hetcomm_context_t* context_handle = nb::cast<Context&>(context).handle();
    hetcomm_status_t status;
    std::string why;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_communicator_create(context_handle, bootstrap, &options, &handle);
      if (status != HETCOMM_OK) why = hetcomm_last_error();
      hetcomm_bootstrap_destroy(bootstrap);
    }
    if (status != HETCOMM_OK) throw StatusError{status, why};
    return std::make_unique<Communicator>(handle, std::move(context));
  }

  hetcomm_communicator_t* handle() const {
    if (handle_ == nullptr) throw nb::value_error("the communicator is closed");
    return handle_;
  }
  int32_t rank() const { return place().first; }
  int32_t size() const { return place().second; }

  void close() {
    if (handle_ == nullptr) return;
    hetcomm_status_t status;
    {
      const nb::gil_scoped_release unlocked;
      status = hetcomm_communicator_destroy(handle_);
    }
    check(status);
    handle_ = nullptr;
    parent_ = nb::none();
  }

 private:
  std::pair<int32_t, int32_t> place() const {
    int32_t rank = 0;
    int32_t size = 0;
    check(hetcomm_communicator_rank(handle(), &rank, &size));
    return {rank, size};
  }

  hetcomm_communicator_t* handle_;
  nb::object parent_;
};

// One end of a queue. Its requests keep it alive, so that none is pending when it goes.
class Queue {
 public:
  Queue(const Communicator& communicator, int32_t peer, int32_t end, uint64_t max_item_bytes,
        uint32_t depth, uint64_t tag) {
    const hetcomm_queue_options_t options{.struct_size = sizeof(options),
                                          .tag = tag,
                                          .max_item_bytes = max_item_bytes,
                                          .depth = depth,
                                          .reserved = 0};
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
  hetcomm_queue_t* handle_ = nullptr;
};

// The arguments that collective operations have in common, as Python's keywords.
struct CollectiveArguments {
  CollectiveArguments(std::optional<double> timeout, std::optional<std::string> algorithm_name,
                      double factor, uint32_t flags)
      : algorithm(std::move(algorithm_name)) {
    options.struct_size = sizeof(options);
    options.timeout_ns = nanoseconds(timeout);
    options.algorithm = algorithm ? algorithm->c_str() : nullptr;
    options.factor = factor;
    options.flags = flags;
  }
  CollectiveArguments(const CollectiveArguments&) = delete;
  CollectiveArguments& operator=(const CollectiveArguments&) = delete;

  std::optional<std::string> algorithm;
  hetcomm_collective_options_t options{};
};

template <typename Call>
RequestPtr start(nb::object kept, Call&& call) {
  hetcomm_request_t* request = nullptr;
  hetcomm_status_t status;
  {
    const nb::gil_scoped_release unlocked;
    status = call(&request);
  }
  check(status);
  return std::make_unique<Request>(request, std::move(kept));
}

template <typename... Objects>
nb::object keep(Objects&&... objects) {
  return nb::make_tuple(std::forward<Objects>(objects)...);
}

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

// The exception class, made in Python so that it can be read there.
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
  nb::class_<Context>(module, "Context", "Configuration, devices, transports and progress.")
      .def(nb::init<bool, const std::optional<std::string>&>(), "thread"_a = false,
           "settings"_a = nb::none(),
           "thread: a background thread makes progress too. settings: \"NAME=value;...\", before "
           "the environment.")
      .def(
          "progress", [](const Context& self) { check(hetcomm_context_progress(self.handle())); },
          nb::call_guard<nb::gil_scoped_release>(), "Drives communication once; never blocks.");

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
      .def("close", &Communicator::close, "Says goodbye; the communicator cannot be used any more.")
      .def(
          "send",
          [](const Communicator& self, Input buffer, int32_t destination, uint64_t tag,
             std::optional<double> timeout) {
            hetcomm_operation_options_t options{};
            options.struct_size = sizeof(options);
            options.timeout_ns = nanoseconds(timeout);
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
  const auto make = [](int32_t end) {
    return [end](const Communicator& self, int32_t peer, uint64_t max_item_bytes, uint32_t depth,
                 uint64_t tag) {
      return std::make_unique<Queue>(self, peer, end, max_item_bytes, depth, tag);
    };
  };
  communicator
      .def(
          "push_queue", make(HETCOMM_QUEUE_PUSH), "peer"_a, "max_item_bytes"_a, "depth"_a = 4,
          "tag"_a = 0, kKeepsCommunicator,
          "The end of a queue to rank peer that this rank pushes into. Needs Context(thread=True).")
      .def("pull_queue", make(HETCOMM_QUEUE_PULL), "peer"_a, "max_item_bytes"_a, "depth"_a = 4,
           "tag"_a = 0, kKeepsCommunicator,
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
            hetcomm_queue_t* handle = self.handle();
            const hetcomm_buffer_t bytes = buffer_of(buffer);
            return start(keep(buffer), [&](hetcomm_request_t** request) {
              return hetcomm_queue_pull(handle, bytes, &options, request);
            });
          },
          "buffer"_a.noconvert(), "timeout"_a = nb::none(), kKeepsCommunicator,
          "Pulls the next item into the buffer; wait() says how long it is. Post the next pull "
          "before you work on an item.")
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
            const CollectiveArguments common(timeout, std::move(algorithm), 1, 0);
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
            const CollectiveArguments common(timeout, std::move(algorithm), factor, 0);
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
            const CollectiveArguments common(timeout, std::move(algorithm), 1, 0);
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

// Operations that take one buffer to send and one to receive into.
template <typename Function>
void bind_move(nb::class_<Communicator>& type, const char* name, Function function,
               const char* text) {
  type.def(
      name,
      [function](const Communicator& self, Input send, Output recv, std::optional<double> timeout,
                 std::optional<std::string> algorithm) {
        same_type(send.dtype(), recv.dtype());
        const CollectiveArguments common(timeout, std::move(algorithm), 1, 0);
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
        const CollectiveArguments common(timeout, std::move(algorithm), 1, 0);
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
                                         exclusive ? kExclusive : 0);
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
  nb::class_<Communicator> communicator(module, "Communicator",
                                        "Ranks that exchange messages. Collective calls come in "
                                        "the same order on all of them.");
  bind_communicator(communicator);
  bind_queues(module, communicator);
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
