#include "transports/shm/setup.h"

#include <algorithm>

#include "src/base/bytes.h"
#include "src/base/text.h"
#include "src/net/socket_peer.h"

namespace hetcomm::shm {
namespace {

constexpr uint32_t kMagic = 0x68637368;
constexpr size_t kMessageBytes = 256;
constexpr size_t kMaxText = 180;

// Returns the error for a setup that fails because of the peer. |what| describes the fault.
Status invalid(const char* what) {
  return Status(Code::kInvalidArgument, fmt::format("shm: peer {}", what));
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
  connection_.side = side;
  connection_.socket = std::move(socket);
  incoming_.bytes.reserve(kMessageBytes);
}

Setup::~Setup() {
  if (connection_.socket.valid()) context_.poller.remove(connection_.socket.get(), *this);
}

Result<std::unique_ptr<Setup>> Setup::offer(UniqueFd socket, const SetupContext& context,
                                            uint64_t peer_ring_bytes, SetupHandler& handler) {
  std::unique_ptr<Setup> setup(new Setup(std::move(socket), 0, context, handler));
  Result<ConnectionMemory> memory =
      ConnectionMemory::create(context.geometry.within(peer_ring_bytes));
  if (!memory.ok()) return memory.status();
  setup->connection_.memory = std::move(memory).value();
  setup->connection_.memory.place_ring(1, context.inside_node);
  HETCOMM_RETURN_IF_ERROR(setup->start());
  HETCOMM_RETURN_IF_ERROR(setup->send({}));
  setup->connection_.memory.let_go_of_file();
  return setup;
}

Result<std::unique_ptr<Setup>> Setup::await_offer(UniqueFd socket, const SetupContext& context,
                                                  SetupHandler& handler) {
  std::unique_ptr<Setup> setup(new Setup(std::move(socket), 1, context, handler));
  HETCOMM_RETURN_IF_ERROR(setup->start());
  return setup;
}

// Starts the setup. The peer's process id is read before its message arrives. The message then
// proves that the process is still alive, so its id has not been reused.
Status Setup::start() {
  Result<LocalPeer> peer = local_peer(connection_.socket.get());
  if (!peer.ok()) return peer.status();
  connection_.pid = peer->process;
  connection_.user = peer->user;
  return context_.poller.add(connection_.socket.get(), EPOLLIN | EPOLLRDHUP, *this);
}

Status Setup::send(const Status& outcome) {
  Message message;
  message.outcome = outcome;
  message.membarrier = context_.membarrier;
  message.geometry = connection_.memory.geometry();
  message.nonce_address = reinterpret_cast<uint64_t>(&context_.nonce);
  message.nonce = context_.nonce;
  const int memory = connection_.side == 0 ? connection_.memory.file() : -1;
  const Status sent = send_with(connection_.socket.get(), message.encode(), memory);
  // The socket is new, so its buffer can hold the whole message.
  if (sent.code() != Code::kWouldBlock) return sent;
  return Status(Code::kOutOfResources, "shm: the local socket's buffer is too small");
}

Status Setup::receive() {
  return receive_with(connection_.socket.get(), kMessageBytes, connection_.side == 1, incoming_);
}

Status Setup::accept_message() {
  Result<Message> message = Message::decode(incoming_.bytes);
  if (!message.ok()) return message.status();
  HETCOMM_RETURN_IF_ERROR(message->outcome);
  if (connection_.side == 1) HETCOMM_RETURN_IF_ERROR(accept_offer(*message));
  connection_.fence = !message->membarrier || !context_.membarrier;
  connection_.reading = context_.reading;
  if (connection_.reading.ok()) {
    connection_.reading = prove_reading(connection_.pid, message->nonce_address, message->nonce);
  }
  return {};
}

Status Setup::accept_offer(const Message& message) {
  if (!incoming_.descriptor.valid()) return invalid("sent no memory");
  // This side allocates the memory of one of the two rings, so it limits their size.
  if (message.geometry.ring_bytes > context_.geometry.ring_bytes) {
    return invalid("wants rings that are larger than this side accepts (HETCOMM_SHM_RING_BYTES)");
  }
  Result<ConnectionMemory> memory =
      ConnectionMemory::adopt(std::move(incoming_.descriptor), message.geometry);
  if (!memory.ok()) return memory.status();
  connection_.memory = std::move(memory).value();
  connection_.memory.place_ring(0, context_.inside_node);
  connection_.memory.let_go_of_file();
  return {};
}

void Setup::on_events(uint32_t) {
  Status outcome = receive();
  if (outcome.code() == Code::kPending) return;
  if (outcome.ok()) outcome = accept_message();
  if (connection_.side == 1 && outcome.code() != Code::kPeerLost) {
    // Sends success, or the reason for the failure if the peer is still connected. A failure on
    // this side takes precedence over a failure to send.
    const Status sent = send(outcome);
    if (outcome.ok()) outcome = sent;
  }
  report(outcome);
}

void Setup::report(const Status& outcome) {
  context_.poller.remove(connection_.socket.get(), *this);
  if (!outcome.ok()) {
    connection_.socket.reset();
    handler_.on_setup(*this, outcome);
    return;
  }
  handler_.on_setup(*this, std::move(connection_));
}

}  // namespace hetcomm::shm
