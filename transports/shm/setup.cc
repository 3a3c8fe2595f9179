#include "transports/shm/setup.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "src/base/bytes.h"
#include "src/base/text.h"
#include "transports/shm/passing.h"

namespace hetcomm::shm {
namespace {

constexpr uint32_t kMagic = 0x68637368;
constexpr size_t kMessageBytes = 256;
constexpr size_t kMaxText = 180;
constexpr size_t kMaxDescriptors = kMaxPassed;

// Errors of the set-up are the peer's, named by what was expected of it.
Status invalid(const char* what) {
  return Status(Code::kInvalidArgument, fmt::format("shm: peer {}", what));
}

bool is_eventfd(int fd) {
  std::array<char, 32> target{};
  const std::string link = fmt::format("/proc/self/fd/{}", fd);
  const ssize_t length = readlink(link.c_str(), target.data(), target.size());
  // Without /proc the descriptor is taken as it is: the peer has proved that it belongs to the
  // job.
  if (length < 0) return true;
  return std::string_view(target.data(), static_cast<size_t>(length)) == "anon_inode:[eventfd]";
}

}  // namespace

struct Setup::Message {
  Status outcome;
  bool membarrier = false;
  Geometry geometry;
  uint64_t nonce_address = 0;
  Nonce nonce{};

  std::vector<std::byte> encode() const {
    ByteWriter writer;
    writer.write(kMagic);
    writer.write(kLayoutVersion);
    writer.write(static_cast<int32_t>(outcome.code()));
    writer.write(static_cast<uint8_t>(membarrier));
    writer.write(geometry.ring_bytes);
    writer.write(geometry.chunk_bytes);
    writer.write(nonce_address);
    writer.write_raw(nonce);
    writer.write_string(outcome.ok() ? "" : outcome.text().substr(0, kMaxText));
    std::vector<std::byte> bytes = writer.take();
    bytes.resize(kMessageBytes);
    return bytes;
  }
  static Result<Message> decode(ConstByteSpan bytes) {
    ByteReader reader(bytes);
    if (reader.read<uint32_t>() != kMagic || reader.read<uint16_t>() != kLayoutVersion) {
      return invalid("speaks another version");
    }
    Message message;
    const auto code = static_cast<Code>(reader.read<int32_t>());
    message.membarrier = reader.read<uint8_t>() != 0;
    message.geometry.ring_bytes = reader.read<uint64_t>();
    message.geometry.chunk_bytes = reader.read<uint32_t>();
    message.nonce_address = reader.read<uint64_t>();
    const ConstByteSpan nonce = reader.read_raw(sizeof(Nonce));
    std::copy(nonce.begin(), nonce.end(), message.nonce.begin());
    const std::string text = reader.read_string(kMaxText);
    if (reader.failed()) return invalid("sent a malformed message");
    if (code != Code::kOk)
      message.outcome = Status(Code::kOutOfResources, "shm: peer: " + printable(text));
    return message;
  }
};

Setup::Setup(UniqueFd socket, int side, const SetupContext& context, SetupHandler& handler)
    : context_(context), handler_(handler) {
  link_.side = side;
  link_.socket = std::move(socket);
  received_.reserve(kMessageBytes);
}

Setup::~Setup() {
  if (link_.socket.valid()) context_.poller.remove(link_.socket.get(), *this);
}

Result<std::unique_ptr<Setup>> Setup::offer(UniqueFd socket, const SetupContext& context,
                                            SetupHandler& handler) {
  std::unique_ptr<Setup> setup(new Setup(std::move(socket), 0, context, handler));
  Result<Segment> segment = Segment::create(context.geometry);
  if (!segment.ok()) return segment.status();
  setup->link_.segment = std::move(segment).value();
  HETCOMM_RETURN_IF_ERROR(setup->start());
  HETCOMM_RETURN_IF_ERROR(setup->send({}));
  return setup;
}

Result<std::unique_ptr<Setup>> Setup::await_offer(UniqueFd socket, const SetupContext& context,
                                                  SetupHandler& handler) {
  std::unique_ptr<Setup> setup(new Setup(std::move(socket), 1, context, handler));
  HETCOMM_RETURN_IF_ERROR(setup->start());
  return setup;
}

// The process is named before the peer's message comes, which proves that it was alive meanwhile:
// the number cannot have been given to another.
Status Setup::start() {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(link_.socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
      peer.pid > 0) {
    link_.pid = peer.pid;
    link_.process.reset(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
  }
  return context_.poller.add(link_.socket.get(), EPOLLIN | EPOLLRDHUP, *this);
}

Status Setup::send(const Status& outcome) {
  Message message;
  message.outcome = outcome;
  message.membarrier = context_.membarrier;
  message.geometry = context_.geometry;
  message.nonce_address = reinterpret_cast<uint64_t>(&context_.nonce);
  message.nonce = context_.nonce;
  const std::array<int, kMaxDescriptors> descriptors{context_.doorbell_fd, link_.segment.file()};
  const size_t count = !outcome.ok() ? 0 : link_.side == 0 ? 2 : 1;
  const Status sent =
      send_with(link_.socket.get(), message.encode(), std::span(descriptors).first(count));
  // The socket is fresh: its buffer takes all.
  if (sent.code() != Code::kWouldBlock) return sent;
  return Status(Code::kOutOfResources, "shm: the local socket's buffer is too small");
}

Status Setup::receive() {
  HETCOMM_RETURN_IF_ERROR(receive_with(link_.socket.get(), kMessageBytes, received_, descriptors_));
  return descriptors_.size() > kMaxDescriptors ? invalid("sent too many descriptors") : Status();
}

Status Setup::accept_message() {
  Result<Message> message = Message::decode(received_);
  if (!message.ok()) return message.status();
  HETCOMM_RETURN_IF_ERROR(message->outcome);
  HETCOMM_RETURN_IF_ERROR(link_.side == 0 ? accept_answer(*message) : accept_offer(*message));
  link_.doorbell = std::move(descriptors_[0]);
  if (!is_eventfd(link_.doorbell.get())) return invalid("sent a doorbell that is none");
  link_.fence = !message->membarrier || !context_.membarrier;
  link_.reading = context_.reading;
  if (link_.reading.ok()) {
    link_.reading = prove_reading(link_.pid, message->nonce_address, message->nonce);
  }
  return {};
}

Status Setup::accept_answer(const Message&) {
  return descriptors_.size() == 1 ? Status() : invalid("sent no doorbell");
}

Status Setup::accept_offer(const Message& message) {
  if (descriptors_.size() != 2) return invalid("sent no memory");
  Result<Segment> segment = Segment::adopt(std::move(descriptors_[1]), message.geometry);
  if (!segment.ok()) return segment.status();
  link_.segment = std::move(segment).value();
  return {};
}

void Setup::on_events(uint32_t) {
  Status outcome = receive();
  if (outcome.code() == Code::kPending) return;
  if (outcome.ok()) outcome = accept_message();
  if (link_.side == 1 && outcome.code() != Code::kPeerLost) {
    // The peer is told why, if it still listens; this side's own reason comes first.
    const Status sent = send(outcome);
    if (outcome.ok()) outcome = sent;
  }
  report(outcome);
}

void Setup::report(const Status& outcome) {
  context_.poller.remove(link_.socket.get(), *this);
  if (!outcome.ok()) {
    link_.socket.reset();
    handler_.on_setup(*this, outcome);
    return;
  }
  handler_.on_setup(*this, std::move(link_));
}

}  // namespace hetcomm::shm
