#include "transports/shm/contact.h"

#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "src/base/bytes.h"
#include "src/net/address.h"
#include "src/system/unique_fd.h"
#include "transports/shm/wire.h"

namespace hetcomm::shm {
namespace {

constexpr uint8_t kVersion = 3;
constexpr size_t kMaxName = 100;

}  // namespace

Contact Contact::of_this_process(std::string socket, uint64_t ring_bytes) {
  Contact contact;
  contact.socket = std::move(socket);
  contact.ring_bytes = ring_bytes;
  contact.host = read_host_id();
  struct stat info {};
  if (stat("/proc/self/ns/net", &info) == 0) contact.network_namespace = info.st_ino;
  return contact;
}

std::vector<std::byte> Contact::encode() const {
  ByteWriter writer;
  writer.write(kVersion);
  writer.write_string(socket);
  writer.write(ring_bytes);
  writer.write_raw(host);
  writer.write(network_namespace);
  return writer.take();
}

Result<Contact> Contact::decode(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  if (reader.read<uint8_t>() != kVersion) {
    return Status(Code::kUnsupported, "shm: peer speaks another version");
  }
  Contact contact;
  contact.socket = reader.read_string(kMaxName);
  contact.ring_bytes = reader.read<uint64_t>();
  const ConstByteSpan host = reader.read_raw(contact.host.size());
  std::copy(host.begin(), host.end(), contact.host.begin());
  contact.network_namespace = reader.read<uint64_t>();
  if (!reader.finished() || contact.socket.empty() || !valid_ring(contact.ring_bytes)) {
    return Status(Code::kInvalidArgument, "shm: malformed contact");
  }
  return contact;
}

Status try_reach(const Contact& own, const Contact& peer) {
  const bool same_host = own.host == peer.host;
  if (same_host && own.network_namespace == peer.network_namespace) return {};
  const UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe.valid()) return status_from_errno(errno, "shm: socket");
  const Address address = Address::local(peer.socket);
  // A full backlog (EAGAIN) means that the socket has a listener.
  if (::connect(probe.get(), address.get(), address.length()) == 0 || errno == EAGAIN) return {};
  if (!same_host) return Status(Code::kNotFound, "shm: peer is on another host");
  return Status(
      Code::kNotFound,
      "shm: peer is in another network namespace, where its local socket is not reachable");
}

}  // namespace hetcomm::shm
