// Feeds arbitrary bytes to the accepting and the connecting side of TLS, alone or combined with a
// genuine first message. The first byte of the input selects the side and the combination.
// Properties: no crash, never established, a text for every failure, and an end as soon as the
// stream ends.
#include "src/net/tls.h"

#include <sys/socket.h>

#include <cstdlib>

#include "src/base/span.h"
#include "src/capi/variables.h"
#include "src/system/unique_fd.h"
#include "tests/support/certificates.h"

namespace hetcomm {
namespace {

using Step = TlsSession::Step;

void require(bool holds) {
  if (!holds) std::abort();
}

const TlsContext& context() {
  static const auto made = [] {
    const test::Certificates files;
    Log log;
    auto config = Config::load(kVariables, nullptr, files.settings(), log);
    require(config.ok());
    auto context = TlsContext::create(config.value(), log);
    require(context.ok());
    return context.value();
  }();
  return *made;
}

struct Pair {
  Pair() {
    int fds[2] = {-1, -1};
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    near.reset(fds[0]);
    far.reset(fds[1]);
  }
  std::vector<std::byte> take() const {
    std::vector<std::byte> bytes(16384);
    const ssize_t got = ::recv(far.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  void give(ConstByteSpan bytes) const {
    [[maybe_unused]] const ssize_t sent =
        ::send(far.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  UniqueFd near, far;
};

// Returns the first message of a connecting side, or the answer to that message.
std::vector<std::byte> genuine(bool answer) {
  const Pair client;
  const auto connecting = context().connect(client.near.get());
  require(connecting->shake_hands() == Step::kWantRead);
  std::vector<std::byte> message = client.take();
  if (!answer) return message;
  const Pair server;
  const auto accepting = context().accept(server.near.get());
  server.give(message);
  require(accepting->shake_hands() == Step::kWantRead);
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
      const size_t at = std::to_integer<size_t>(rest[0]) * 7 % bytes.size();
      rest = rest.subspan(1);
      bytes.resize((mode & 4) != 0 ? at : bytes.size());
      if ((mode & 4) == 0 && !rest.empty()) bytes[at] = bytes[at] ^ rest[0];
    }
  }
  bytes.insert(bytes.end(), rest.begin(), rest.end());

  const Pair pair;
  const auto side =
      accepts ? context().accept(pair.near.get()) : context().connect(pair.near.get());
  Step step = side->shake_hands();
  require(step == Step::kWantRead);
  pair.give(bytes);
  step = side->shake_hands();
  if (step != Step::kFailed) {
    ::shutdown(pair.far.get(), SHUT_WR);
    step = side->shake_hands();
  }
  require(step == Step::kFailed);
  require(!side->established());
  require(!side->error().ok());
}

}  // namespace
}  // namespace hetcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hetcomm::run(std::as_bytes(std::span(data, size)));
  return 0;
}
