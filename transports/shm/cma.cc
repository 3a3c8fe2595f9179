#include "transports/shm/cma.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transports/shm/bulk_queue.h"

namespace hetcomm::shm {
namespace {

// The maximum number of pieces per system call, on each side.
constexpr size_t kWindow = 64;

// Converts an address in the peer to the form that the kernel expects. The result is never
// dereferenced here.
void* remote_pointer(uint64_t address) {
  return reinterpret_cast<void*>(
      static_cast<uintptr_t>(address));  // NOLINT(performance-no-int-to-ptr)
}

// The position of a get in the peer's memory: an index in the peer's list of pieces, and the number
// of bytes to skip in that piece.
struct RemotePosition {
  uint64_t index;
  uint64_t skip;
};
RemotePosition load_position(const Bulk& bulk) {
  return {bulk.scratch[3] >> 48, bulk.scratch[3] & kMaxSourceBytes};
}
void store_position(Bulk& bulk, const RemotePosition& position) {
  bulk.scratch[3] = position.index << 48 | position.skip;
}

// Reads up to kWindow pieces of the peer's list into |pieces|, starting at |position|. Advances
// |position| to the piece that contains it, and trims this first piece so that it begins there.
// Returns the number of pieces, 0 at the end of the list, or a negative errno.
int64_t fetch_pieces(pid_t pid, const SourceKey& source, RemotePosition& position,
                     std::array<iovec, kWindow>& pieces) {
  while (position.index < source.extents) {
    const uint64_t count = std::min<uint64_t>(kWindow, source.extents - position.index);
    const iovec into{pieces.data(), count * sizeof(iovec)};
    const iovec from{remote_pointer(source.address + position.index * sizeof(iovec)), into.iov_len};
    const ssize_t got = process_vm_readv(pid, &into, 1, &from, 1, 0);
    if (got < 0) return -errno;
    if (static_cast<size_t>(got) != into.iov_len) return -EFAULT;
    uint64_t first = 0;
    for (; first < count && position.skip >= pieces[first].iov_len; ++first) {
      position.skip -= pieces[first].iov_len;
    }
    position.index += first;
    if (first == count) continue;
    std::copy(pieces.begin() + first, pieces.begin() + count, pieces.begin());
    pieces[0].iov_base = static_cast<std::byte*>(pieces[0].iov_base) + position.skip;
    pieces[0].iov_len -= position.skip;
    return static_cast<int64_t>(count - first);
  }
  return 0;
}

}  // namespace

Status prove_reading(pid_t pid, uint64_t address, const Nonce& expected) {
  if (pid <= 0) return Status(Code::kUnsupported, "peer is in another PID namespace");
  Nonce found{};
  const iovec into{found.data(), found.size()};
  const iovec from{remote_pointer(address), found.size()};
  const ssize_t got = process_vm_readv(pid, &into, 1, &from, 1, 0);
  if (got < 0) return status_from_errno(errno, "process_vm_readv");
  if (static_cast<size_t>(got) != found.size() || found != expected) {
    return Status(Code::kUnsupported, "peer's PID names another process here");
  }
  return {};
}

void begin_read(Bulk& bulk) {
  ExtentCursor cursor;
  cursor.seek(bulk.local.extents, bulk.local.offset);
  store_cursor(bulk, cursor);
  store_position(bulk, {0, bulk.remote_offset});
}

uint64_t left_to_read(const Bulk& bulk) {
  return bulk.local.offset + bulk.local.length - load_cursor(bulk).position;
}

int64_t read_fragment(pid_t pid, const SourceKey& source, Bulk& bulk, uint64_t most) {
  ExtentCursor cursor = load_cursor(bulk);
  most = std::min(most, left_to_read(bulk));
  std::array<iovec, kWindow> local;
  size_t local_count = 0;
  ExtentCursor ahead = cursor;
  for (uint64_t planned = 0; planned < most && local_count < kWindow; ++local_count) {
    local[local_count] = ahead.next(bulk.local.extents, most - planned);
    planned += local[local_count].iov_len;
  }
  RemotePosition position = load_position(bulk);
  std::array<iovec, kWindow> remote;
  int64_t remote_count = 1;
  if (source.extents == 0) {
    remote[0] = {remote_pointer(source.address + position.skip), most};
  } else {
    remote_count = fetch_pieces(pid, source, position, remote);
    if (remote_count < 0) return remote_count;
    if (remote_count == 0) return -EFAULT;
  }
  const ssize_t got = process_vm_readv(pid, local.data(), local_count, remote.data(),
                                       static_cast<unsigned long>(remote_count), 0);
  if (got < 0) return -errno;
  if (got == 0) return -EFAULT;
  cursor.seek(bulk.local.extents, cursor.position + static_cast<uint64_t>(got));
  store_cursor(bulk, cursor);
  position.skip += static_cast<uint64_t>(got);
  store_position(bulk, position);
  return got;
}

}  // namespace hetcomm::shm
