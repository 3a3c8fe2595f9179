// Defines the types shared by all parts of the Python module: arrays, errors, contexts, requests
// and communicators.
//
// A buffer is any contiguous object in host memory with DLPack or Python's buffer protocol, or
// device memory that another module has registered (DeviceArray). Arguments are accepted without
// conversion (noconvert), since results must not be written to a converted copy. If an object
// refuses to be exported, its own exception is raised. A request holds references to its buffers
// until it is done. A request that is destroyed earlier is cancelled. Any number of threads may
// wait for one request, and all of them get its result. No call that may block holds the GIL.
#pragma once

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

namespace hetcomm_python {

// Clears and returns the pending Python exception, with its traceback.
inline nb::object take_exception() {
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

inline nb::object take_exception(nb::python_error& error) {
  error.restore();
  return take_exception();
}

[[noreturn]] inline void raise(const nb::object& exception) {
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

// Formats an exception as "ValueError: text of the exception".
inline std::string described(const nb::object& exception) {
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

// A DeviceArray is contiguous device memory that another module has registered with the library.
// Operations on it are ordered by a stream.
class DeviceArray {
 public:
  // |memory| and |stream|, which may be null, must stay valid as long as |owner| exists. The array
  // begins at |offset|.
  DeviceArray(hetcomm_memory_t* memory, uint64_t bytes, nb::dlpack::dtype type,
              hetcomm_stream_t* stream, nb::object owner, uint64_t offset = 0)
      : buffer_(hetcomm_buffer_memory(memory, offset, bytes)),
        type_(type),
        stream_(stream),
        owner_(std::move(owner)) {}

  const hetcomm_buffer_t& buffer() const { return buffer_; }
  nb::dlpack::dtype dtype() const { return type_; }
  hetcomm_stream_t* stream() const { return stream_; }

 private:
  const hetcomm_buffer_t buffer_;
  const nb::dlpack::dtype type_;
  hetcomm_stream_t* const stream_;
  const nb::object owner_;
};

// AnyArray holds an array from a caller. If the object refuses to be exported, its exception is
// stored and raised when the array is used, because nanobind's conversions cannot raise.
template <typename Array>
class AnyArray {
 public:
  void set(Array&& array) {
    array_ = std::move(array);
    other_.reset();
  }
  void set_device_array(nb::object array) {
    on_device_ = nb::inst_ptr<DeviceArray>(array);
    other_ = std::move(array);
  }
  void set_refusal(nb::object exception) { other_ = std::move(exception); }
  const Array& get() const {
    if (other_.is_valid()) [[unlikely]]
      raise(other_);
    return array_;
  }
  nb::dlpack::dtype dtype() const { return on_device_ ? on_device_->dtype() : get().dtype(); }
  // Returns the device array, or null for an array in host memory.
  const DeviceArray* on_device() const { return on_device_; }
  const nb::object& device_array() const { return other_; }

 private:
  Array array_;
  nb::object other_;  // owner of |on_device_|, or the stored exception; |array_| is then unused
  const DeviceArray* on_device_ = nullptr;
};

using Input = AnyArray<nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>>;
using Output = AnyArray<nb::ndarray<nb::c_contig, nb::device::cpu>>;

// Only a versioned capsule says whether memory is read-only. Older versions of nanobind reject such
// capsules.
inline constexpr bool kVersionedCapsules = NB_VERSION_MAJOR >= 3;

// Returns an interned string, which is never freed.
inline nb::handle interned(const char* name) { return PyUnicode_InternFromString(name); }

// Returns the attribute, or an empty object if |object| does not have it.
inline nb::object find_attribute(nb::handle object, nb::handle name) {
  nb::object found = nb::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (!found.is_valid()) PyErr_Clear();
  return found;
}

// Calls the method |dlpack|, and passes a version if |versioned|. On failure, returns an empty
// object with a Python exception pending.
inline nb::object call_dlpack(nb::handle dlpack, bool versioned) {
  if (!versioned) return nb::steal(PyObject_CallNoArgs(dlpack.ptr()));
  static const nb::handle kNames = nb::make_tuple(interned("max_version")).release();
  static const nb::handle kVersion = nb::make_tuple(1, 0).release();
  PyObject* const arguments[] = {kVersion.ptr()};
  return nb::steal(PyObject_Vectorcall(dlpack.ptr(), arguments, 0, kNames.ptr()));
}

// Calls an object's __dlpack__ method, first with a version if |writable|. If the object refuses,
// calls it again the other way, because an object may not support versions, or may export read-only
// memory only with a version. Never passes a version if nanobind does not accept versioned
// capsules.
inline nb::object export_capsule(nb::handle dlpack, bool writable) {
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

// Returns whether |object| is a pyopencl array or buffer.
inline bool is_pyopencls(nb::handle object) {
  static const nb::handle kNames[] = {interned("base_data"), interned("int_ptr")};
  return find_attribute(object, kNames[0]).is_valid() ||
         find_attribute(object, kNames[1]).is_valid();
}

// Makes a DeviceArray from the pyopencl object |given|, for a call on |self|. On failure, returns
// an empty object with a Python exception pending.
inline nb::object adopt_pyopencls(nb::handle self, nb::handle given) noexcept {
  const nb::object module = nb::steal(PyImport_ImportModule("hetcomm.opencl"));
  if (!module.is_valid()) return {};
  PyObject* const owner = self.is_valid() ? self.ptr() : Py_None;
  return nb::steal(PyObject_CallMethod(module.ptr(), "array_of", "OO", owner, given.ptr()));
}

// Returns whether the memory of |exporter| holds its values. PyTorch exports a tensor with the
// negative bit as if the bit were not set. If the result is false, an exception is pending.
inline bool holds_its_values(nb::handle exporter) {
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

}  // namespace hetcomm_python

// Converts an argument. If an object refuses DLPack, nanobind tries other protocols. The buffer
// protocol describes the memory correctly, but PyTorch's function to_dlpack ignores conjugation and
// gradients. Objects without the buffer protocol are therefore exported here.
template <typename Array>
struct nanobind::detail::type_caster<hetcomm_python::AnyArray<Array>> {
  using AnyArray = hetcomm_python::AnyArray<Array>;
  NB_TYPE_CASTER(AnyArray, make_caster<Array>::Name)

  template <typename Flags>
  bool from_python(handle source, Flags flags, cleanup_list* cleanup) noexcept {
    if (PyObject_CheckBuffer(source.ptr())) [[likely]]
      return take(source, flags, cleanup);
    if (isinstance<hetcomm_python::DeviceArray>(source)) {
      value.set_device_array(borrow(source));
      return true;
    }
    static const handle kDlpack = hetcomm_python::interned("__dlpack__");
    const object dlpack = hetcomm_python::find_attribute(source, kDlpack);
    if (!dlpack.is_valid()) {
      if (hetcomm_python::is_pyopencls(source) && cleanup != nullptr) {
        adopt(hetcomm_python::adopt_pyopencls(cleanup->self(), source));
        return true;
      }
      return take(source, flags, cleanup);
    }
    object capsule;
    if (hetcomm_python::holds_its_values(source)) {
      capsule =
          hetcomm_python::export_capsule(dlpack, !std::is_same_v<AnyArray, hetcomm_python::Input>);
    }
    if (capsule.is_valid()) return take(capsule, flags, cleanup);
    value.set_refusal(hetcomm_python::take_exception());
    return true;
  }

  // Returns an object that keeps the memory alive.
  static handle from_cpp(const AnyArray& array, rv_policy /*policy*/,
                         cleanup_list* cleanup) noexcept {
    if (array.on_device() != nullptr) return array.device_array().inc_ref();
    return make_caster<Array>::from_cpp(array.get(), rv_policy::reference, cleanup);
  }

 private:
  // Adopts an array that was made from the argument. If |made| is empty, an exception is pending.
  void adopt(object made) noexcept {
    if (made.is_valid() && isinstance<hetcomm_python::DeviceArray>(made)) {
      value.set_device_array(std::move(made));
    } else {
      value.set_refusal(hetcomm_python::take_exception());
    }
  }

  template <typename Flags>
  bool take(handle source, Flags flags, cleanup_list* cleanup) noexcept {
    make_caster<Array> caster;
    if (!caster.from_python(source, flags, cleanup)) return false;
    value.set(std::move(caster.value));
    return true;
  }
};

namespace hetcomm_python {

// Policy for functions that return a request: the communicator outlives the request.
inline constexpr nb::keep_alive<0, 1> kKeepsCommunicator;

struct StatusError {
  hetcomm_status_t status;
  std::string text;
  nb::object cause{};
};

[[noreturn]] inline void fail(hetcomm_status_t status, const char* detail = hetcomm_last_error()) {
  throw StatusError{status, detail[0] != '\0' ? detail : hetcomm_status_text(status)};
}

inline void check(hetcomm_status_t status) {
  if (status != HETCOMM_OK) fail(status);
}

// Converts seconds to a timeout of the C ABI. None means the default timeout. A billion seconds or
// more, or infinity, mean no limit. With 0 or a negative number, calls only poll.
inline uint64_t nanoseconds(std::optional<double> seconds) {
  if (!seconds) return HETCOMM_TIMEOUT_DEFAULT;
  if (!(*seconds < 1e9)) return HETCOMM_TIMEOUT_INFINITE;
  if (*seconds <= 0) return HETCOMM_TIMEOUT_POLL;
  return std::max<uint64_t>(static_cast<uint64_t>(*seconds * 1e9), 2);
}

template <typename Array>
hetcomm_buffer_t buffer_of(const Array& array) {
  static constexpr char kNowhere = 0;
  if (array.on_device() != nullptr) return array.on_device()->buffer();
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

// Returns the stream that is not null, or null if both are. Throws if both are set and differ.
inline hetcomm_stream_t* common_stream(hetcomm_stream_t* one, hetcomm_stream_t* other) {
  if (one != nullptr && other != nullptr && one != other) {
    throw nb::value_error("arrays of one call are in the order of different streams");
  }
  return one != nullptr ? one : other;
}
// Returns the stream of the arrays that are on devices, or null if all are in host memory. Throws
// if they have different streams.
template <typename Array>
hetcomm_stream_t* stream_of(const Array& array) {
  return array.on_device() != nullptr ? array.on_device()->stream() : nullptr;
}
template <typename Array>
hetcomm_stream_t* stream_of(const std::optional<Array>& array) {
  return array ? stream_of(*array) : nullptr;
}
template <typename Array>
hetcomm_stream_t* stream_of(const std::vector<Array>& arrays) {
  hetcomm_stream_t* stream = nullptr;
  for (const Array& array : arrays) stream = common_stream(stream, stream_of(array));
  return stream;
}
template <typename First, typename Second>
hetcomm_stream_t* stream_of(const First& first, const Second& second) {
  return common_stream(stream_of(first), stream_of(second));
}

inline hetcomm_datatype_t datatype_of(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  // Codes of DLPack 1.1, which nanobind's header may lack.
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
  // Wraps the context at |address|, which belongs to |owner|.
  Context(uint64_t address, nb::object owner)
      : handle_(reinterpret_cast<hetcomm_context_t*>(address)), owner_(std::move(owner)) {}
  ~Context() {
    if (owner_.is_valid()) return;
    const nb::gil_scoped_release unlocked;
    static_cast<void>(hetcomm_context_destroy(handle_));
  }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  hetcomm_context_t* handle() const { return handle_; }

 private:
  hetcomm_context_t* handle_ = nullptr;
  nb::object owner_;
};

struct Completion {
  std::string status;
  std::string text;
  int32_t source;
  uint64_t tag;
  uint64_t bytes_sent;
  uint64_t bytes_received;
};

inline Completion completion_of(const hetcomm_completion_t& completion) {
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
    // The library must stop using the buffers before they are freed.
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
    // Another thread is collecting the result, so there is nothing left to cancel.
    if (status == HETCOMM_STALE_HANDLE && asking_ > 0) return;
    check(status);
  }

 private:
  // Completes the request with the result of |call|. Returns false if the request is still pending.
  // The library reports the result to one thread only. The other threads wait for that thread,
  // which needs the GIL to share it.
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
  // The GIL guards the members below, and is held when changes_ is incremented. A thread that
  // decides to sleep therefore cannot miss its wake-up.
  bool done_ = false;
  int asking_ = 0;  // threads that are waiting for the library's report, or are storing it
  int sleeping_ = 0;
  hetcomm_status_t status_ = HETCOMM_OK;
  Completion completion_{};
  std::atomic<uint32_t> changes_{0};  // number of changes while a thread sleeps
};

using RequestPtr = std::unique_ptr<Request>;

// StoreCallbacks calls the caller's functions through which ranks find each other. They run on the
// thread that creates the communicator. That thread raises their exceptions.
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

  // Calls get(key, seconds), which returns the bytes, or None if they did not arrive in time.
  static hetcomm_status_t call_get(void* self, const char* key, void* value, size_t* inout_size,
                                   uint64_t timeout_ns) {
    auto& own = *static_cast<StoreCallbacks*>(self);
    const nb::gil_scoped_acquire locked;
    // An interrupted rank does not wait for other ranks, but still notifies them through put().
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

  // If a callback was interrupted, raises its exception, whether or not the communicator was
  // created.
  void raise_interruption() const {
    if (interrupted()) raise(raised_);
  }
  // Adds the exception of a callback to |error|.
  StatusError explained(StatusError error) const {
    if (!raised_.is_valid()) return error;
    error.text.append(": ").append(name_).append(" raised ").append(described(raised_));
    error.cause = raised_;
    return error;
  }

 private:
  // Stores the first exception. The first one that stops the program takes its place.
  hetcomm_status_t failed(const char* name, nb::python_error& error) {
    nb::object exception = take_exception(error);
    if (!raised_.is_valid() || (!interrupted() && stops_program(exception))) {
      name_ = name;
      raised_ = std::move(exception);
    }
    return HETCOMM_BOOTSTRAP_FAILED;
  }

  // Returns true for KeyboardInterrupt, SystemExit and similar exceptions.
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
    if (borrowed_) return;
    const nb::gil_scoped_release unlocked;
    static_cast<void>(hetcomm_communicator_destroy(handle_));
  }
  // Wraps the communicator at |address|, which belongs to |owner|. close() then only drops the
  // address.
  static std::unique_ptr<Communicator> borrow(uint64_t address, nb::object owner) {
    auto made = std::make_unique<Communicator>(reinterpret_cast<hetcomm_communicator_t*>(address),
                                               std::move(owner));
    made->borrowed_ = true;
    return made;
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
  bool closed() const { return handle_ == nullptr; }
  // Returns the context's Python object, or None if another object owns the context.
  nb::object context() const {
    if (nb::isinstance<Context>(parent_)) return parent_;
    if (nb::isinstance<Communicator>(parent_)) return nb::cast<Communicator&>(parent_).context();
    return nb::none();
  }
  int32_t rank() const { return place().first; }
  int32_t size() const { return place().second; }

  // Closes the communicator, its plans and its pipelines. |self| is its Python object.
  static void close_with_plans(const nb::object& self) {
    // Closes the plans and pipelines, if a module that makes them has been loaded.
    const nb::object modules = nb::module_::import_("sys").attr("modules");
    const nb::object closing = modules.attr("get")("hetcomm._closing");
    if (!closing.is_none()) closing.attr("closing")(self);
    nb::cast<Communicator&>(self).close();
  }
  void close() {
    if (handle_ == nullptr) return;
    hetcomm_status_t status = HETCOMM_OK;
    if (!borrowed_) {
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
  bool borrowed_ = false;
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

// Returns the index of |name| in |names|. Raises ValueError for another name. |what| is the noun
// for the error text.
inline int32_t number_of(const char* const* names, size_t count, const std::string& name,
                         const char* what) {
  for (size_t i = 0; i < count; ++i) {
    if (name == names[i]) return static_cast<int32_t>(i);
  }
  throw nb::value_error(("there is no " + std::string(what) + " '" + name + "'").c_str());
}

// Calls write(capacity, text, &size), a function of the C ABI, until the whole text fits, and
// returns the text.
template <typename Write>
std::string text_of(Write&& write, const char* (*last_error)() = hetcomm_last_error) {
  std::string text(4096, '\0');
  while (true) {
    size_t size = 0;
    hetcomm_status_t status;
    {
      const nb::gil_scoped_release unlocked;
      status = write(text.size(), text.data(), &size);
    }
    if (status != HETCOMM_OK) fail(status, last_error());
    const bool fits = size <= text.size();
    text.resize(fits ? size - 1 : size);
    if (fits) return text;
  }
}

}  // namespace hetcomm_python
