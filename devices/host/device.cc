// HostDevice presents the host as a device: it gives access to the CPU's own memory through the
// same function table as an accelerator.
//
// Each allocation is a mapping of a separate file, so that other processes on the host can map it.
// The files use at most a quarter of the process's file descriptors. Further allocations come from
// the heap. A file above the file size limit is refused with an explanatory text.
//
// A copy is complete when the call that starts it returns, so a stream has no state and an event is
// complete from the start. The handles of both are the device pointer, and nothing is allocated for
// them. The table has no `find` (the host cannot tell who owns the memory at an address) and no
// pinning (the host has no copy engine that would need it).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>

#include <fmt/format.h>

#include "devices/registry.h"
#include "src/base/status.h"
#include "src/system/memory_file.h"
#include "src/system/unique_fd.h"

namespace hetcomm {
namespace {

// Size of a cache line and of the widest vector register. Memory is aligned to it, so that vector
// operations in reductions and copies do not straddle lines.
constexpr uint64_t kAlignment = 64;
// Memory of at least this size starts on a page, so that registering it does not include other
// data.
constexpr uint64_t kPageAlignedFrom = 1u << 20;
constexpr uint64_t kPage = 4096;
// Upper bound on the size of an allocation. It is the size of a process's address space on x86-64,
// and small enough that rounding a size up cannot overflow.
constexpr uint64_t kLargest = uint64_t{1} << 47;

struct HostDevice {
  struct Shared {
    int file;
    uint64_t size_bytes;
  };
  size_t most_files = 0;
  uint64_t most_bytes = 0;  // size of the host's memory; larger allocations come from the heap
  std::mutex mutex;
  std::unordered_map<void*, Shared> shared;  // by address
};

uint64_t whole_pages(uint64_t bytes) { return (bytes + kPage - 1) & ~(kPage - 1); }

// Returns whether |size_bytes| should be allocated from a file instead of the heap.
bool shall_share(const HostDevice& device, uint64_t size_bytes) {
  return size_bytes > 0 && size_bytes <= device.most_bytes &&
         device.shared.size() < device.most_files;
}

// Maps a new file. Returns null if the memory must come from the heap instead.
void* map_new_file(HostDevice& device, uint64_t size) {
  Result<UniqueFd> file = create_memory_file("hetcomm-memory", size);
  if (!file.ok()) return nullptr;
  // Seals the file's size, so that a peer never maps less memory than announced.
  if (fcntl(file->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return nullptr;
  }
  void* const address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file->get(), 0);
  if (address == MAP_FAILED) return nullptr;
  try {
    device.shared.emplace(address, HostDevice::Shared{file->get(), size});
  } catch (const std::bad_alloc&) {
    munmap(address, size);
    return nullptr;
  }
  (void)file->release();
  return address;
}

// The reason why this thread's last allocation was refused; kOk if it succeeded, or failed only for
// lack of memory.
thread_local Status kept_refusal;

// Allocates from a file. Returns null if the size is refused (kept_refusal is set), or if the heap
// must be used.
void* allocate_shared(HostDevice& device, uint64_t size_bytes) {
  const std::lock_guard lock(device.mutex);
  if (!shall_share(device, size_bytes)) return nullptr;
  const uint64_t size = whole_pages(size_bytes);
  kept_refusal = check_file_size(size);
  return kept_refusal.ok() ? map_new_file(device, size) : nullptr;
}

// Frees memory that was allocated from a file. Returns false if |address| is from the heap.
bool free_shared(HostDevice& device, void* address) {
  const std::lock_guard lock(device.mutex);
  const auto found = device.shared.find(address);
  if (found == device.shared.end()) return false;
  munmap(address, found->second.size_bytes);
  close(found->second.file);
  device.shared.erase(found);
  return true;
}

hetcomm_status_t shared_file(void* device, const void* address, int* out_file,
                             uint64_t* out_offset) {
  auto& own = *static_cast<HostDevice*>(device);
  const std::lock_guard lock(own.mutex);
  const auto found = own.shared.find(const_cast<void*>(address));
  if (found == own.shared.end()) return HETCOMM_NOT_FOUND;
  *out_file = found->second.file;
  *out_offset = 0;
  return HETCOMM_OK;
}

void destroy(void* device) { delete static_cast<HostDevice*>(device); }

const char* name(void*) { return "host memory"; }

hetcomm_status_t allocate(void* device, uint64_t size_bytes, void** out_address) {
  if (out_address == nullptr) return HETCOMM_INVALID_ARGUMENT;
  kept_refusal = {};
  if (size_bytes > kLargest) return HETCOMM_OUT_OF_MEMORY;
  void* const shared = allocate_shared(*static_cast<HostDevice*>(device), size_bytes);
  if (shared != nullptr) {
    *out_address = shared;
    return HETCOMM_OK;
  }
  if (!kept_refusal.ok()) return HETCOMM_OUT_OF_RESOURCES;
  const uint64_t alignment = size_bytes >= kPageAlignedFrom ? kPage : kAlignment;
  // An empty allocation also has its own address.
  const uint64_t wanted = size_bytes == 0 ? 1 : size_bytes;
  void* const address = std::aligned_alloc(alignment, (wanted + alignment - 1) & ~(alignment - 1));
  if (address == nullptr) return HETCOMM_OUT_OF_MEMORY;
  *out_address = address;
  return HETCOMM_OK;
}

void error_text(void*, char* text, uint64_t size) {
  if (size == 0) return;
  text[0] = '\0';
  if (kept_refusal.ok()) return;
  const auto end =
      fmt::format_to_n(text, size - 1, "{}, or wrap memory of your own", kept_refusal.text());
  *end.out = '\0';
}

void free_memory(void* device, void* address) {
  if (!free_shared(*static_cast<HostDevice*>(device), address)) std::free(address);
}

hetcomm_status_t stream_create(void* device, void** out_stream) {
  if (out_stream == nullptr) return HETCOMM_INVALID_ARGUMENT;
  *out_stream = device;
  return HETCOMM_OK;
}

void stream_destroy(void*, void*) {}

// Copies host memory. The two ranges may overlap.
hetcomm_status_t copy(void* to, const void* from, uint64_t size_bytes) {
  if (size_bytes == 0) return HETCOMM_OK;
  if (to == nullptr || from == nullptr) return HETCOMM_INVALID_ARGUMENT;
  std::memmove(to, from, size_bytes);
  return HETCOMM_OK;
}

// Returns false if [address + offset, + size_bytes) wraps around the end of the address space.
bool range_exists(const void* address, uint64_t offset, uint64_t size_bytes) {
  uint64_t begin = 0;
  uint64_t end = 0;
  return !__builtin_add_overflow(reinterpret_cast<uintptr_t>(address), offset, &begin) &&
         !__builtin_add_overflow(begin, size_bytes, &end);
}

hetcomm_status_t copy_to_host(void*, void*, void* host, const void* address, uint64_t offset,
                              uint64_t size_bytes) {
  if (!range_exists(address, offset, size_bytes)) return HETCOMM_OUT_OF_RANGE;
  if (address == nullptr && size_bytes != 0) return HETCOMM_INVALID_ARGUMENT;
  return copy(host, static_cast<const std::byte*>(address) + offset, size_bytes);
}

hetcomm_status_t copy_from_host(void*, void*, void* address, uint64_t offset, const void* host,
                                uint64_t size_bytes) {
  if (!range_exists(address, offset, size_bytes)) return HETCOMM_OUT_OF_RANGE;
  if (address == nullptr && size_bytes != 0) return HETCOMM_INVALID_ARGUMENT;
  return copy(static_cast<std::byte*>(address) + offset, host, size_bytes);
}

hetcomm_status_t event_record(void* device, void*, void** out_event) {
  if (out_event == nullptr) return HETCOMM_INVALID_ARGUMENT;
  *out_event = device;
  return HETCOMM_OK;
}

hetcomm_status_t event_done(void*, void* event) {
  return event == nullptr ? HETCOMM_INVALID_ARGUMENT : HETCOMM_OK;
}

void event_release(void*, void*) {}

constexpr DeviceTable kTable = {
    .struct_size = sizeof(DeviceTable),
    .kind = "host",
    .host_accessible = 1,
    .destroy = destroy,
    .name = name,
    .allocate = allocate,
    .free = free_memory,
    .shared_file = shared_file,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .copy_to_host = copy_to_host,
    .copy_from_host = copy_from_host,
    .event_record = event_record,
    .event_query = event_done,
    .event_wait = event_done,
    .event_release = event_release,
    .error_text = error_text,
};

}  // namespace

Result<Device> create_host_device() {
  auto* const device = new (std::nothrow) HostDevice;
  if (device == nullptr) return Code::kOutOfMemory;
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    device->most_files = static_cast<size_t>(std::min<rlim_t>(files.rlim_cur / 4, 4096));
  }
  const long pages = sysconf(_SC_PHYS_PAGES);
  if (pages > 0) device->most_bytes = static_cast<uint64_t>(pages) * kPage;
  return Device{.table = &kTable, .instance = device};
}

}  // namespace hetcomm
