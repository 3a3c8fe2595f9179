// Feeds arbitrary bytes to both sides of the handshake. The first byte of the input selects the
// side and how the rest is combined with a genuine message. Properties: no crash, never kDone, and
// an end as soon as the stream ends.
#include "src/net/handshake.h"

#include <sys/socket.h>

#include <cstdlib>
#include <string_view>

#include "src/net/key.h"
#include "src/system/unique_fd.h"

namespace hetcomm {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

Credentials credentials() {
  constexpr std::string_view kSecret = "secret";
  return {.identity = identity_of("job", "world", 1),
          .secret = secret_from(std::as_bytes(std::span(kSecret)))};
}

Hello hello() {
  Hello hello;
  hello.identity = credentials().identity;
  hello.destination = 1;
  return hello;
}

struct Pair {
  Pair() {
    int fds[2] = {-1, -1};
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    near.reset(fds[0]);
    far.reset(fds[1]);
  }
  std::vector<std::byte> take() const {
    std::vector<std::byte> bytes(4096);
    const ssize_t got = ::recv(far.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  void give(ConstByteSpan bytes) const {
    [[maybe_unused]] const ssize_t sent =
        ::send(far.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  UniqueFd near, far;
};

// Returns a genuine hello, or the challenge that answers it.
std::vector<std::byte> genuine(bool challenge) {
  const Pair client;
  Handshake initiator = Handshake::initiator(client.near.get(), credentials().secret, hello());
  initiator.advance();
  std::vector<std::byte> message = client.take();
  if (!challenge) return message;
  const Pair server;
  Handshake acceptor = Handshake::acceptor(server.near.get(), credentials(), Role::kTcp, 1);
  server.give(message);
  acceptor.advance();
  return server.take();
}

void run(ConstByteSpan input) {
  if (input.empty()) return;
  const auto mode = std::to_integer<unsigned int>(input[0]);
  const bool accepts = (mode & 1) != 0;
  ConstByteSpan rest = input.subspan(1);
  std::vector<std::byte> bytes;
  if ((mode & 2) != 0) {
    bytes = genuine(!accepts);
    if (!rest.empty()) {
      const size_t at = std::to_integer<size_t>(rest[0]) % bytes.size();
      rest = rest.subspan(1);
      bytes.resize((mode & 4) != 0 ? at : bytes.size());
      if ((mode & 4) == 0 && !rest.empty()) bytes[at] = bytes[at] ^ rest[0];
    }
  }
  bytes.insert(bytes.end(), rest.begin(), rest.end());

  const Pair pair;
  Handshake side = accepts ? Handshake::acceptor(pair.near.get(), credentials(), Role::kTcp, 1)
                           : Handshake::initiator(pair.near.get(), credentials().secret, hello());
  const auto step = side.advance();
  if (step == Handshake::Step::kFailed) return;
  pair.give(bytes);
  ::shutdown(pair.far.get(), SHUT_WR);
  require(side.advance() == Handshake::Step::kFailed);
  require(!side.error().ok());
}

}  // namespace
}  // namespace hetcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hetcomm::run(std::as_bytes(std::span(data, size)));
  return 0;
}
