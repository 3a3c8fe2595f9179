#include "transports/shm/descriptor.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "src/base/bytes.h"
#include "src/base/unique_fd.h"
#include "src/net/address.h"
#include "transports/shm/wire.h"

namespace hetcomm::shm {
namespace {

constexpr uint8_t kVersion = 2;
constexpr size_t kMaxName = 100;

// First line of a small file; "" when it cannot be read.
std::string read_line(const char* path) {
  const UniqueFd file(open(path, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return "";
  std::array<char, 64> text{};
  const ssize_t got = read(file.get(), text.data(), text.size());
  if (got <= 0) return "";
  const std::string_view all(text.data(), static_cast<size_t>(got));
  return std::string(all.substr(0, all.find('\n')));
}

}  // namespace

Descriptor Descriptor::of_this_process(std::string socket, uint64_t ring_bytes) {
  Descriptor descriptor;
  descriptor.socket = std::move(socket);
  descriptor.ring_bytes = ring_bytes;
  descriptor.boot = read_line("/proc/sys/kernel/random/boot_id");
  struct stat info {};
  if (stat("/proc/self/ns/net", &info) == 0) descriptor.network_namespace = info.st_ino;
  return descriptor;
}

std::vector<std::byte> Descriptor::encode() const {
  ByteWriter writer;
  writer.write(kVersion);
  writer.write_string(socket);
  writer.write(ring_bytes);
  writer.write_string(boot);
  writer.write(network_namespace);
  return writer.take();
}

Result<Descriptor> Descriptor::decode(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  if (reader.read<uint8_t>() != kVersion) {
    return Status(Code::kUnsupported, "shm: peer speaks another version");
  }
  Descriptor descriptor;
  descriptor.socket = reader.read_string(kMaxName);
  descriptor.ring_bytes = reader.read<uint64_t>();
  descriptor.boot = reader.read_string(kMaxName);
  descriptor.network_namespace = reader.read<uint64_t>();
  if (!reader.finished() || descriptor.socket.empty() || !valid_ring(descriptor.ring_bytes)) {
    return Status(Code::kInvalidArgument, "shm: malformed descriptor");
  }
  return descriptor;
}

Status try_reach(const Descriptor& own, const Descriptor& peer) {
  const bool same_boot = own.boot == peer.boot;
  if (same_boot && own.network_namespace == peer.network_namespace) return {};
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe.valid()) return status_from_errno(errno, "shm: socket");
  const Address address = Address::local(peer.socket);
  // A full backlog (EAGAIN) is somebody who listens.
  if (::connect(probe.get(), address.get(), address.length()) == 0 || errno == EAGAIN) return {};
  if (!same_boot) return Status(Code::kNotFound, "shm: peer is on another host");
  return Status(
      Code::kNotFound,
      "shm: peer is in another network namespace, where its local socket is not reachable");
}

}  // namespace hetcomm::shm
