#include "devices/plugin/checked_device.h"

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include <fmt/core.h>

#include "src/base/text.h"

namespace hetcomm {
namespace {

// The functions whose results are checked, and the statuses that each may return in addition to
// kAlways.
#define HETCOMM_CHECKED_FUNCTIONS(X)                                        \
  X(allocate, kOfRanges)                                                    \
  X(find, bit(HETCOMM_NOT_FOUND) | bit(HETCOMM_STALE_HANDLE))               \
  X(shared_file, kOfRanges | bit(HETCOMM_NOT_FOUND))                        \
  X(stream_create, bit(HETCOMM_INVALID_ARGUMENT))                           \
  X(copy_to_host, kOfRanges)                                                \
  X(copy_from_host, kOfRanges)                                              \
  X(copy_rows_to_host, kOfRanges)                                           \
  X(copy_rows_from_host, kOfRanges)                                         \
  X(event_record, bit(HETCOMM_INVALID_ARGUMENT))                            \
  X(event_query, kOfRanges | bit(HETCOMM_PENDING))                          \
  X(event_wait, kOfRanges)                                                  \
  X(pin_host, kOfRanges | bit(HETCOMM_UNSUPPORTED))                         \
  X(export_dmabuf, kOfRanges | bit(HETCOMM_UNSUPPORTED))                    \
  X(registrable_address, kOfRanges | bit(HETCOMM_UNSUPPORTED))              \
  X(flush_remote_writes, 0)                                                 \
  X(retain, kOfRanges | bit(HETCOMM_UNSUPPORTED))                           \
  X(allocate_host, bit(HETCOMM_INVALID_ARGUMENT))                           \
  X(event_notify, bit(HETCOMM_INVALID_ARGUMENT) | bit(HETCOMM_UNSUPPORTED)) \
  X(user_stream_open, kOfStreams)                                           \
  X(user_stream_record, kOfStreams)                                         \
  X(user_stream_hold, kOfStreams)                                           \
  X(stream_native, kOfStreams)                                              \
  X(copy_rows_between, kOfRanges | bit(HETCOMM_UNSUPPORTED))                \
  X(reduce, kOfRanges | bit(HETCOMM_UNSUPPORTED))                           \
  X(locate, bit(HETCOMM_NOT_FOUND) | bit(HETCOMM_STALE_HANDLE))

enum class Function : uint8_t {
#define HETCOMM_CHECKED_NAME(name, statuses) name,
  HETCOMM_CHECKED_FUNCTIONS(HETCOMM_CHECKED_NAME)
#undef HETCOMM_CHECKED_NAME
};

constexpr uint32_t kPendingBit = 1u << 31;
constexpr uint32_t kLostBit = 1u << 30;
constexpr hetcomm_status_t kMin = -29;  // the last status with its own bit

// Returns the bit of a status, or 0 if no device may return it.
constexpr uint32_t bit(hetcomm_status_t status) {
  if (status == HETCOMM_PENDING) return kPendingBit;
  if (status == HETCOMM_DEVICE_LOST) return kLostBit;
  return status <= 0 && status >= kMin ? 1u << static_cast<uint32_t>(-status) : 0;
}

constexpr uint32_t kAlways = bit(HETCOMM_OK) | bit(HETCOMM_OUT_OF_MEMORY) |
                             bit(HETCOMM_OUT_OF_RESOURCES) | bit(HETCOMM_DEVICE_LOST) |
                             bit(HETCOMM_INTERNAL);
constexpr uint32_t kOfRanges =
    bit(HETCOMM_INVALID_ARGUMENT) | bit(HETCOMM_OUT_OF_RANGE) | bit(HETCOMM_STALE_HANDLE);
constexpr uint32_t kOfStreams = bit(HETCOMM_INVALID_ARGUMENT) | bit(HETCOMM_UNSUPPORTED);

constexpr std::array kAllowed = {
#define HETCOMM_CHECKED_STATUSES(name, statuses) kAlways | (statuses),
    HETCOMM_CHECKED_FUNCTIONS(HETCOMM_CHECKED_STATUSES)
#undef HETCOMM_CHECKED_STATUSES
};
constexpr std::array kNames = {
#define HETCOMM_CHECKED_TEXT(name, statuses) #name,
    HETCOMM_CHECKED_FUNCTIONS(HETCOMM_CHECKED_TEXT)
#undef HETCOMM_CHECKED_TEXT
};

class CheckedDevice {
 public:
  CheckedDevice(const DeviceTable& inner, void* instance);

  const DeviceTable& table() const { return table_; }
  const DeviceTable& inner() const { return inner_; }
  void* instance() const { return instance_; }

  // Returns the status to report to the caller when a function has returned |status|.
  template <Function kFunction>
  hetcomm_status_t filter(hetcomm_status_t status) {
    if (status == HETCOMM_OK || status == HETCOMM_PENDING) [[likely]] {
      if ((bit(status) & kAllowed[index_of(kFunction)]) != 0) return status;
    }
    return judge(kFunction, status);
  }
  hetcomm_status_t judge(Function function, hetcomm_status_t status) {
    if ((bit(status) & kAllowed[index_of(function)]) == 0) return refuse(function, status);
    if (status == HETCOMM_DEVICE_LOST) odd_.store(0, std::memory_order_relaxed);
    return status;
  }
  // Records that |function| has violated its contract by returning |status|. The caller gets
  // DEVICE_LOST instead.
  hetcomm_status_t refuse(Function function, hetcomm_status_t status) {
    odd_.store(uint64_t{index_of(function) + 1} << 32 | static_cast<uint32_t>(status),
               std::memory_order_relaxed);
    return HETCOMM_DEVICE_LOST;
  }
  void write_error(char* text, uint64_t size) const;

 private:
  static constexpr size_t index_of(Function function) { return static_cast<size_t>(function); }
  template <auto kEntry, Function kFunction>
  void take();

  const DeviceTable inner_;
  void* const instance_;
  DeviceTable table_;
  // The last contract violation, as packed by refuse(); 0 if there was none since the device itself
  // last reported DEVICE_LOST.
  std::atomic<uint64_t> odd_{0};
};

CheckedDevice& of(void* device) { return *static_cast<CheckedDevice*>(device); }

// A table entry that calls the device's own function with its own instance.
template <auto kEntry>
struct Pass;
template <typename Result, typename... Args, Result (*DeviceTable::*kEntry)(void*, Args...)>
struct Pass<kEntry> {
  static Result call(void* device, Args... args) {
    return (of(device).inner().*kEntry)(of(device).instance(), args...);
  }
};
template <auto kEntry, Function kFunction>
struct Through;
template <typename... Args, hetcomm_status_t (*DeviceTable::*kEntry)(void*, Args...),
          Function kFunction>
struct Through<kEntry, kFunction> {
  static hetcomm_status_t call(void* device, Args... args) {
    return of(device).filter<kFunction>(Pass<kEntry>::call(device, args...));
  }
};

hetcomm_status_t allocate(void* device, uint64_t size, void** out_address) {
  if (out_address == nullptr) return HETCOMM_INVALID_ARGUMENT;
  void* address = nullptr;
  const hetcomm_status_t status =
      Through<&DeviceTable::allocate, Function::allocate>::call(device, size, &address);
  if (status != HETCOMM_OK) return status;
  if (address == nullptr) return of(device).refuse(Function::allocate, HETCOMM_OK);
  *out_address = address;
  return HETCOMM_OK;
}

// Copies between two checked devices. UNSUPPORTED: the wrapped devices use different functions for
// this copy.
hetcomm_status_t copy_rows_between(void* device, void* stream, const void* from,
                                   const DeviceRows* from_rows, void* to_device, void* to,
                                   const DeviceRows* to_rows) {
  CheckedDevice& own = of(device);
  if (to_device == nullptr) return HETCOMM_INVALID_ARGUMENT;
  const CheckedDevice& other = of(to_device);
  if (own.inner().copy_rows_between != other.inner().copy_rows_between) return HETCOMM_UNSUPPORTED;
  return own.filter<Function::copy_rows_between>(own.inner().copy_rows_between(
      own.instance(), stream, from, from_rows, other.instance(), to, to_rows));
}

hetcomm_status_t locate(void* const* devices, uint64_t count, const void* address,
                        hetcomm_device_place_t* out_place) {
  std::array<void*, 256> instances;
  for (uint64_t begin = 0; begin < count;) {
    CheckedDevice& first = of(devices[begin]);
    uint64_t asked = 0;
    while (begin + asked < count && asked < instances.size() &&
           of(devices[begin + asked]).inner().locate == first.inner().locate) {
      instances[asked] = of(devices[begin + asked]).instance();
      ++asked;
    }
    const hetcomm_status_t status = first.filter<Function::locate>(
        first.inner().locate(instances.data(), asked, address, out_place));
    if (status == HETCOMM_OK && out_place->device >= asked) {
      return first.refuse(Function::locate, HETCOMM_OK);
    }
    if (status == HETCOMM_OK) out_place->device += begin;
    if (status != HETCOMM_NOT_FOUND) return status;
    begin += asked;
  }
  return HETCOMM_NOT_FOUND;
}

void destroy(void* device) {
  const std::unique_ptr<CheckedDevice> own(&of(device));
  own->inner().destroy(own->instance());
}

template <auto kEntry, Function kFunction>
void CheckedDevice::take() {
  if (inner_.*kEntry != nullptr) table_.*kEntry = Through<kEntry, kFunction>::call;
}

// Sets entry |kEntry| of |table|, whose function returns no status, if |inner| has the entry.
template <auto kEntry>
void pass(const DeviceTable& inner, DeviceTable& table) {
  if (inner.*kEntry != nullptr) table.*kEntry = Pass<kEntry>::call;
}

CheckedDevice::CheckedDevice(const DeviceTable& inner, void* instance)
    : inner_(inner), instance_(instance), table_(inner) {
  if (inner_.locate != nullptr) table_.locate = locate;
  table_.destroy = destroy;
  table_.allocate = allocate;
  if (inner_.copy_rows_between != nullptr) table_.copy_rows_between = copy_rows_between;
  pass<&DeviceTable::name>(inner_, table_);
  pass<&DeviceTable::free>(inner_, table_);
  pass<&DeviceTable::stream_destroy>(inner_, table_);
  pass<&DeviceTable::event_release>(inner_, table_);
  pass<&DeviceTable::unpin_host>(inner_, table_);
  pass<&DeviceTable::pci_address>(inner_, table_);
  pass<&DeviceTable::release>(inner_, table_);
  pass<&DeviceTable::free_host>(inner_, table_);
  pass<&DeviceTable::user_stream_close>(inner_, table_);
  pass<&DeviceTable::hold_end>(inner_, table_);
  pass<&DeviceTable::numa_node>(inner_, table_);
  pass<&DeviceTable::host_memory_suffices>(inner_, table_);
  pass<&DeviceTable::retain_rule>(inner_, table_);
  pass<&DeviceTable::names_object>(inner_, table_);
  take<&DeviceTable::find, Function::find>();
  take<&DeviceTable::shared_file, Function::shared_file>();
  take<&DeviceTable::stream_create, Function::stream_create>();
  take<&DeviceTable::copy_to_host, Function::copy_to_host>();
  take<&DeviceTable::copy_from_host, Function::copy_from_host>();
  take<&DeviceTable::copy_rows_to_host, Function::copy_rows_to_host>();
  take<&DeviceTable::copy_rows_from_host, Function::copy_rows_from_host>();
  take<&DeviceTable::event_record, Function::event_record>();
  take<&DeviceTable::event_query, Function::event_query>();
  take<&DeviceTable::event_wait, Function::event_wait>();
  take<&DeviceTable::pin_host, Function::pin_host>();
  take<&DeviceTable::export_dmabuf, Function::export_dmabuf>();
  take<&DeviceTable::registrable_address, Function::registrable_address>();
  take<&DeviceTable::flush_remote_writes, Function::flush_remote_writes>();
  take<&DeviceTable::retain, Function::retain>();
  take<&DeviceTable::allocate_host, Function::allocate_host>();
  take<&DeviceTable::event_notify, Function::event_notify>();
  take<&DeviceTable::user_stream_open, Function::user_stream_open>();
  take<&DeviceTable::user_stream_record, Function::user_stream_record>();
  take<&DeviceTable::user_stream_hold, Function::user_stream_hold>();
  take<&DeviceTable::stream_native, Function::stream_native>();
  take<&DeviceTable::reduce, Function::reduce>();
  table_.error_text = [](void* device, char* text, uint64_t size) {
    of(device).write_error(text, size);
  };
}

// Writes the contract violation first, since the vendor's text may be older.
void CheckedDevice::write_error(char* text, uint64_t size) const {
  if (size == 0) return;
  text[0] = '\0';
  const uint64_t odd = odd_.load(std::memory_order_relaxed);
  uint64_t used = 0;
  if (odd != 0) {
    const auto status = static_cast<hetcomm_status_t>(static_cast<uint32_t>(odd));
    const char* const function = kNames[(odd >> 32) - 1];
    const std::string said =
        status == HETCOMM_OK
            ? fmt::format("{}() returned OK with a result that cannot be", function)
            : fmt::format("{}() returned {} ({}), which it must not", function, status,
                          code_name(static_cast<Code>(status)));
    used = said.copy(text, size - 1);
    text[used] = '\0';
  }
  if (inner_.error_text == nullptr || used + 3 > size) return;
  const uint64_t at = used == 0 ? 0 : used + 2;
  inner_.error_text(instance_, text + at, size - at);
  text[size - 1] = '\0';
  if (used != 0 && text[at] != '\0') std::memcpy(text + used, "; ", 2);
}

}  // namespace

void drop_wall(const Device& checked) { delete &of(checked.instance); }

bool may_fail_with(hetcomm_status_t status) {
  constexpr uint32_t kMore =
      bit(HETCOMM_INVALID_ARGUMENT) | bit(HETCOMM_UNSUPPORTED) | bit(HETCOMM_NOT_FOUND);
  return status != HETCOMM_OK && (bit(status) & (kAlways | kMore)) != 0;
}

Result<Device> make_checked_device(const Device& given) {
  const Result<DeviceTable> inner = complete_table(given.table);
  if (!inner.ok()) return inner.status();
  auto* const made = new (std::nothrow) CheckedDevice(inner.value(), given.instance);
  if (made == nullptr) return Status(Code::kOutOfMemory);
  return Device{.table = &made->table(), .instance = made};
}

}  // namespace hetcomm
