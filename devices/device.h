// The one interface to devices: a versioned table of functions over an opaque device, so that a
// plug-in can fill it.
//
// An entry that is marked optional may be null; core has a fallback for each. Any thread may call
// any function, on different objects at the same time. No function blocks unless its comment says
// so. A function that returns a status and fails has done nothing and has left its outputs alone.
// A function that takes a range fails with OUT_OF_RANGE if that leaves its allocation, with
// INVALID_ARGUMENT if the address is not this device's, and with STALE_HANDLE if the memory was
// freed and that can be told. Any function may fail with OUT_OF_MEMORY, OUT_OF_RESOURCES or
// DEVICE_LOST.
//
// An address is the vendor's name of memory: a pointer that the CPU may touch (host), one that it
// may not, or a handle. Core never computes with it; it passes address and offset.
#pragma once

#include <cstddef>
#include <cstdint>

#include <hetcomm/status.h>

namespace hetcomm {

inline constexpr uint32_t kDeviceTableVersion = 4;

// Rows of bytes at regular distances in an allocation. Row (i, j) begins at
// offset + i * strides[0] + j * strides[1], for i < extents[0] and j < extents[1].
struct DeviceRows {
  uint64_t offset = 0;
  uint64_t row_bytes = 0;
  uint64_t extents[2] = {1, 1};
  uint64_t strides[2] = {0, 0};

  uint64_t bytes() const { return extents[0] * extents[1] * row_bytes; }
};

struct DeviceTable {
  uint32_t version = kDeviceTableVersion;
  size_t struct_size = sizeof(DeviceTable);
  // Kind of device: "host", "sim-handle", ... Static storage; core shows at most 15 characters.
  const char* kind = "";
  // True: an address is a pointer, and the CPU may load and store through it.
  bool host_accessible = false;

  // Frees the device. Core has freed its memory, streams and events before. May block.
  void (*destroy)(void* device) = nullptr;
  // Gives a name for people, which lives as long as the device.
  const char* (*name)(void* device) = nullptr;

  // Allocates device memory of undefined contents. OUT_OF_MEMORY when there is no room.
  hetcomm_status_t (*allocate)(void* device, uint64_t size_bytes, void** out_address) = nullptr;
  // Frees an allocation; nothing uses it any more. Never fails.
  void (*free)(void* device, void* address) = nullptr;
  // Gives base and size of the allocation that contains |address|, which may be any number.
  // NOT_FOUND when it is not this device's. Optional where the memory is |host_accessible|.
  hetcomm_status_t (*find)(void* device, const void* address, void** out_base,
                           uint64_t* out_size) = nullptr;

  // Optional: gives the file that the allocation |address| is a mapping of, and where in it the
  // allocation begins, so that other processes can map it too. The device keeps the file open until
  // the allocation is freed. NOT_FOUND when the allocation is no mapping of a file.
  hetcomm_status_t (*shared_file)(void* device, const void* address, int* out_file,
                                  uint64_t* out_offset) = nullptr;

  // Creates a stream, which runs its copies in order. Copies of different streams overlap.
  hetcomm_status_t (*stream_create)(void* device, void** out_stream) = nullptr;
  // Waits until the copies of the stream have ended, and frees it.
  void (*stream_destroy)(void* device, void* stream) = nullptr;

  // Starts to copy |size_bytes| at |address| + |offset| into host memory. Both stay valid until an
  // event that was recorded after the copy has completed.
  hetcomm_status_t (*copy_to_host)(void* device, void* stream, void* host, const void* address,
                                   uint64_t offset, uint64_t size_bytes) = nullptr;
  // Starts to copy |size_bytes| of host memory to |address| + |offset|. Both stay valid until an
  // event that was recorded after the copy has completed.
  hetcomm_status_t (*copy_from_host)(void* device, void* stream, void* address, uint64_t offset,
                                     const void* host, uint64_t size_bytes) = nullptr;
  // Optional: start to copy |rows| of the allocation |address| into host memory, where they lie
  // behind each other, and back. As copy_to_host and copy_from_host else. They come together.
  hetcomm_status_t (*copy_rows_to_host)(void* device, void* stream, void* host, const void* address,
                                        const DeviceRows* rows) = nullptr;
  hetcomm_status_t (*copy_rows_from_host)(void* device, void* stream, void* address,
                                          const DeviceRows* rows, const void* host) = nullptr;

  // Creates an event, which completes when all copies have that were put into the stream before it.
  hetcomm_status_t (*event_record)(void* device, void* stream, void** out_event) = nullptr;
  // Returns OK when the event has completed, PENDING when it has not, and the error of a copy that
  // failed.
  hetcomm_status_t (*event_query)(void* device, void* event) = nullptr;
  // Blocks until the event has completed. Returns OK, or the error of a copy that failed.
  hetcomm_status_t (*event_wait)(void* device, void* event) = nullptr;
  // Frees the event.
  void (*event_release)(void* device, void* event) = nullptr;

  // Optional: makes host memory reachable by the device's copy engines at full speed. After a
  // failure core copies from and to the memory all the same.
  hetcomm_status_t (*pin_host)(void* device, void* host, uint64_t size_bytes) = nullptr;
  // Ends what pin_host() did for the memory that begins at |host|. It comes with pin_host().
  void (*unpin_host)(void* device, void* host) = nullptr;

  // The two entries below let network interfaces reach [address + offset, + size_bytes) by
  // themselves. A transport tries them in this order. They return UNSUPPORTED where this memory has
  // no such way.
  //
  // Optional: gives a dma-buf of the range, which begins at |*out_offset| of it. The caller closes
  // |*out_file|.
  hetcomm_status_t (*export_dmabuf)(void* device, const void* address, uint64_t offset,
                                    uint64_t size_bytes, int* out_file,
                                    uint64_t* out_offset) = nullptr;
  // Optional: gives the address by which the kernel, or a vendor's peer memory module, may find the
  // range, so that plain registration can be tried. The CPU need not be able to touch it.
  hetcomm_status_t (*registrable_address)(void* device, const void* address, uint64_t offset,
                                          uint64_t size_bytes, void** out_address) = nullptr;
  // Optional: makes what network interfaces have written into the device's memory visible to
  // everything that is started after this call. Null where that needs nothing.
  hetcomm_status_t (*flush_remote_writes)(void* device) = nullptr;
  // Optional: gives the PCI address of the device, such as "0000:3b:00.0", by which the NICs near it
  // are found; null where it has none. The text lives as long as the device.
  const char* (*pci_address)(void* device) = nullptr;
};

// A device of a context. The table outlives the instance.
struct Device {
  const DeviceTable* table = nullptr;
  void* instance = nullptr;
};

}  // namespace hetcomm
