// The one interface to devices: a versioned table of functions over an opaque device, so that a
// plug-in can fill it.
//
// Entries marked optional may be null; core has a fallback for each. Unless said otherwise
// functions are thread-safe, do not block, and return a hetcomm_status_t. An address is whatever
// the vendor names memory by: a pointer that the CPU may touch (host), one that it may not, or a
// handle; core never does arithmetic on it, it passes address and offset.
#pragma once

#include <cstddef>
#include <cstdint>

#include <hetcomm/status.h>

namespace hetcomm {

inline constexpr uint32_t kDeviceTableVersion = 3;

struct DeviceTable {
  uint32_t version = kDeviceTableVersion;
  size_t struct_size = sizeof(DeviceTable);
  const char* kind = "";         // "host", "sim-handle", ...
  bool host_accessible = false;  // the CPU may load and store through address + offset

  // Frees the device; nothing of it is in use any more.
  void (*destroy)(void* device) = nullptr;
  const char* (*name)(void* device) = nullptr;

  // Device memory. free never fails on what allocate gave.
  hetcomm_status_t (*allocate)(void* device, uint64_t size_bytes, void** out_address) = nullptr;
  void (*free)(void* device, void* address) = nullptr;
  // Base and size of the allocation that contains |address|, which may be any number; NOT_FOUND
  // when it is not this device's. Optional where the memory is |host_accessible|.
  hetcomm_status_t (*find)(void* device, const void* address, void** out_base,
                           uint64_t* out_size) = nullptr;

  // Optional: the file that the allocation |address| is a mapping of, so that other processes can
  // map it too; open until the allocation is freed. NOT_FOUND when it is none.
  hetcomm_status_t (*shared_file)(void* device, const void* address, int* out_file,
                                  uint64_t* out_offset) = nullptr;

  // A stream runs its copies in order; different streams overlap.
  hetcomm_status_t (*stream_create)(void* device, void** out_stream) = nullptr;
  void (*stream_destroy)(void* device, void* stream) = nullptr;  // waits for what it still runs

  // Start a copy between host memory and |address| + |offset|; both stay valid until an event
  // recorded after it has completed.
  hetcomm_status_t (*copy_to_host)(void* device, void* stream, void* host, const void* address,
                                   uint64_t offset, uint64_t size_bytes) = nullptr;
  hetcomm_status_t (*copy_from_host)(void* device, void* stream, void* address, uint64_t offset,
                                     const void* host, uint64_t size_bytes) = nullptr;

  // An event completes when everything put into the stream before it has. query: OK, PENDING or an
  // error.
  hetcomm_status_t (*event_record)(void* device, void* stream, void** out_event) = nullptr;
  hetcomm_status_t (*event_query)(void* device, void* event) = nullptr;
  hetcomm_status_t (*event_wait)(void* device, void* event) = nullptr;  // blocks
  void (*event_release)(void* device, void* event) = nullptr;

  // Optional: makes host memory reachable by the device's copy engines at full speed.
  hetcomm_status_t (*pin_host)(void* device, void* host, uint64_t size_bytes) = nullptr;
  void (*unpin_host)(void* device, void* host) = nullptr;

  // For network interfaces that shall reach [address + offset, + size_bytes) by themselves, in the
  // order in which they are tried. UNSUPPORTED where this memory has none.
  //
  // Optional: a dma-buf of it. *out_file is the caller's to close; the range begins at *out_offset.
  hetcomm_status_t (*export_dmabuf)(void* device, const void* address, uint64_t offset,
                                    uint64_t size_bytes, int* out_file,
                                    uint64_t* out_offset) = nullptr;
  // Optional: the address by which the kernel (or a vendor's peer memory module) may find it, so
  // that plain registration can be tried. The CPU need not be able to touch it.
  hetcomm_status_t (*registrable_address)(void* device, const void* address, uint64_t offset,
                                          uint64_t size_bytes, void** out_address) = nullptr;
  // Optional: what a network interface has written into the device's memory is seen by all that is
  // started after this call. Null where that needs nothing.
  hetcomm_status_t (*flush_remote_writes)(void* device) = nullptr;
};

// A device of a context: table and instance.
struct Device {
  const DeviceTable* table = nullptr;
  void* instance = nullptr;
};

}  // namespace hetcomm
