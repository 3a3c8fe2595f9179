#include "src/net/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>

#include <fmt/core.h>

#include "src/base/bytes.h"
#include "src/base/text.h"
#include "src/net/tls.h"
#include "src/system/random.h"

namespace hetcomm {
namespace {

// The first byte of each magic is not printable, not the first byte of a TLS record, and not a
// small number. A foreign service that is contacted by mistake therefore rejects the connection at
// its first byte.
constexpr std::string_view kHelloMagic = "\x89hetcom\x01";
constexpr std::string_view kChallengeMagic = "\x89hetcom\x02";

// The prefix is the same in every version of the protocol: magic (8), lowest and highest version (2
// each), features (4), byte order (1), role or refusal (1), length of the extra bytes (2).
constexpr size_t kPrefixBytes = 20;
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
// An identity consists of job, epoch and instance.
constexpr size_t kIdentityBytes = 16 + 4 + 16;
// A claim consists of an identity, source, destination, the incarnations of both, and a nonce.
constexpr size_t kClaimBytes = kIdentityBytes + 4 + 4 + 8 + 8 + kNonceBytes;
// An answer consists of the acceptor's incarnation and nonce.
constexpr size_t kAnswerBytes = 8 + kNonceBytes;
// The message of encode_end() has an identity and a code before its text.
constexpr size_t kEndBytes = kIdentityBytes + sizeof(int32_t);

constexpr uint16_t kLowestVersion = 5;
// A process that sets a bit in the upper half requires that feature of its peer. A bit in the lower
// half offers a feature.
constexpr uint32_t kFeatures = 0;
constexpr uint32_t kInsistedFeatures = 0xffff0000u;
constexpr uint8_t kByteOrder = std::endian::native == std::endian::little ? 1 : 2;

constexpr std::string_view kAcceptorLabel = "hetcomm acceptor proof 1";
constexpr std::string_view kInitiatorLabel = "hetcomm initiator proof 1";

constexpr const char* kAnotherJob = "the peer belongs to another job, epoch or communicator";

struct Prefix {
  uint16_t lowest = 0;
  uint16_t highest = 0;
  uint32_t features = 0;
  uint8_t byte_order = 0;
  uint8_t kind = 0;  // role in a hello, refusal in a challenge
  uint16_t extra_size = 0;
};

void write_prefix(ByteWriter& writer, std::string_view magic, uint8_t kind, uint16_t extra_size) {
  writer.write_raw(std::as_bytes(std::span(magic)));
  writer.write(kLowestVersion);
  writer.write(kProtocolVersion);
  writer.write(kFeatures);
  writer.write(kByteOrder);
  writer.write(kind);
  writer.write(extra_size);
}

void write_identity(ByteWriter& writer, const Identity& identity) {
  writer.write_raw(identity.job);
  writer.write(identity.epoch);
  writer.write_raw(identity.instance);
}

// Returns whether the bytes received so far match |magic|.
bool starts_like(ConstByteSpan bytes, std::string_view magic) {
  return std::memcmp(bytes.data(), magic.data(), std::min(bytes.size(), magic.size())) == 0;
}

// Returns whether |bytes| start a TLS record: an alert, or a handshake message.
bool is_tls_record(ConstByteSpan bytes) {
  return !bytes.empty() && (bytes[0] == std::byte{21} || bytes[0] == std::byte{22}) &&
         (bytes.size() < 2 || bytes[1] == std::byte{3});
}

Prefix read_prefix(ConstByteSpan bytes) {
  ByteReader reader(bytes.subspan(kHelloMagic.size()));
  Prefix prefix;
  prefix.lowest = reader.read<uint16_t>();
  prefix.highest = reader.read<uint16_t>();
  prefix.features = reader.read<uint32_t>();
  prefix.byte_order = reader.read<uint8_t>();
  prefix.kind = reader.read<uint8_t>();
  prefix.extra_size = reader.read<uint16_t>();
  return prefix;
}

// Checks that this side and a side with |prefix| have a common protocol. The text gives the reason
// if not.
Status check_protocol(const Prefix& prefix) {
  if (prefix.lowest > kProtocolVersion || prefix.highest < kLowestVersion) {
    return Status(Code::kUnsupported,
                  fmt::format("the peer speaks versions {} to {} of the protocol, this process {} "
                              "to {}: use the same release of hetcomm everywhere",
                              prefix.lowest, prefix.highest, kLowestVersion, kProtocolVersion));
  }
  const uint32_t missing = prefix.features & kInsistedFeatures & ~kFeatures;
  if (missing != 0) {
    return Status(Code::kUnsupported,
                  fmt::format("the peer requires features that this process lacks (bits {:#x}): "
                              "use the same release of hetcomm everywhere",
                              missing));
  }
  if (prefix.byte_order != kByteOrder) {
    return Status(Code::kUnsupported, "the peer's machine has another byte order");
  }
  return {};
}

// Maps the code in an unauthenticated answer. Only codes with which a process can legitimately fail
// are accepted. Any other becomes kBootstrapFailed.
Code code_of_end(int32_t value) {
  switch (static_cast<Code>(value)) {
    case Code::kInvalidArgument:
    case Code::kUnsupported:
    case Code::kNotFound:
    case Code::kPermissionDenied:
    case Code::kOutOfMemory:
    case Code::kOutOfResources:
      return static_cast<Code>(value);
    default:
      return Code::kBootstrapFailed;
  }
}

template <size_t kBytes>
void read_into(ByteReader& reader, std::array<std::byte, kBytes>& out) {
  const ConstByteSpan bytes = reader.read_raw(kBytes);
  std::copy(bytes.begin(), bytes.end(), out.begin());
}

Identity read_identity(ByteReader& reader) {
  Identity identity;
  read_into(reader, identity.job);
  identity.epoch = reader.read<uint32_t>();
  read_into(reader, identity.instance);
  return identity;
}

}  // namespace

std::optional<int32_t> claimed_rank(ConstByteSpan bytes, const Identity& identity) {
  if (bytes.size() < kPrefixBytes + kClaimBytes || !starts_like(bytes, kHelloMagic)) {
    return std::nullopt;
  }
  ByteReader reader(bytes.subspan(kPrefixBytes));
  if (read_identity(reader) != identity) return std::nullopt;
  return reader.read<int32_t>();
}

std::vector<std::byte> encode_end(const Identity& identity, const Status& why) {
  const std::string_view text = why.text().substr(0, kMaxHelloExtra - kEndBytes);
  ByteWriter writer;
  write_prefix(writer, kChallengeMagic, static_cast<uint8_t>(Handshake::Refusal::kEnded),
               static_cast<uint16_t>(kEndBytes + text.size()));
  write_identity(writer, identity);
  writer.write(static_cast<int32_t>(why.code()));
  writer.write_raw(std::as_bytes(std::span(text)));
  return writer.take();
}

Hello make_hello(const Credentials& credentials, Role role, int32_t source, int32_t destination) {
  return {.role = role,
          .identity = credentials.identity,
          .source = source,
          .destination = destination,
          .source_incarnation = credentials.incarnation_of(source),
          .destination_incarnation = credentials.incarnation_of(destination),
          .extra = {}};
}

Handshake Handshake::initiator(int fd, const Secret& secret, Hello mine, TlsSession* tls) {
  Handshake result;
  result.fd_ = fd;
  result.tls_ = tls;
  result.role_ = mine.role;
  result.credentials_.identity = mine.identity;
  result.credentials_.secret = secret;
  result.hello_ = std::move(mine);
  const Hello& hello = result.hello_;
  std::array<std::byte, kNonceBytes> nonce{};
  result.error_ = fill_random(nonce);
  if (hello.extra.size() > kMaxHelloExtra) {
    result.error_ = Status(Code::kInvalidArgument,
                           fmt::format("{} extra bytes in a hello", hello.extra.size()));
  }
  if (!result.error_.ok()) return result;
  ByteWriter writer;
  write_prefix(writer, kHelloMagic, static_cast<uint8_t>(hello.role),
               static_cast<uint16_t>(hello.extra.size()));
  write_identity(writer, hello.identity);
  writer.write(hello.source);
  writer.write(hello.destination);
  writer.write(hello.source_incarnation);
  writer.write(hello.destination_incarnation);
  writer.write_raw(nonce);
  writer.write_raw(hello.extra);
  result.out_ = writer.take();
  result.transcript_ = result.out_;
  result.state_ = State::kSendHello;
  return result;
}

Handshake Handshake::acceptor(int fd, const Credentials& credentials, Role role, int32_t rank,
                              bool any_identity, TlsSession* tls) {
  Handshake result;
  result.fd_ = fd;
  result.tls_ = tls;
  result.credentials_ = credentials;
  result.role_ = role;
  result.rank_ = rank;
  result.any_identity_ = any_identity;
  result.state_ = State::kReadHello;
  return result;
}

bool Handshake::peer_spoke() const {
  return !in_.empty() || !transcript_.empty() || (tls_ != nullptr && tls_->peer_spoke());
}

Handshake::Step Handshake::advance() {
  read_end_before_tls();
  if (tls_ != nullptr && !tls_->established() && state_ != State::kFailed &&
      !shake_hands_of_tls()) {
    return state_ == State::kFailed ? Step::kFailed : blocked_on_;
  }
  while (state_ != State::kDone && state_ != State::kFailed) {
    if (!step()) return state_ == State::kFailed ? Step::kFailed : blocked_on_;
  }
  return state_ == State::kDone ? Step::kDone : Step::kFailed;
}

// Performs one transition. Returns false if the handshake has to wait or has failed.
bool Handshake::step() {
  switch (state_) {
    case State::kSendHello:
      if (!send_out()) return false;
      state_ = State::kReadPrefix;
      return true;
    case State::kReadPrefix:
      return read_challenge_prefix();
    case State::kReadChallenge:
      return read_challenge();
    case State::kReadEnd:
      return read_end();
    case State::kReadHello:
      return read_hello_prefix();
    case State::kReadClaim:
      return read_claim();
    case State::kSendChallenge:
      if (!send_out()) return false;
      state_ = State::kReadProof;
      return true;
    case State::kSendRefusal:
      return send_out() && !finish_refusal();
    case State::kReadProof:
      return read_proof();
    case State::kSendProof:
      if (!send_out()) return false;
      state_ = State::kDone;
      return true;
    case State::kDone:
    case State::kFailed:
      break;
  }
  return false;
}

// Switches from TLS to the plain protocol if the other side has sent the message of encode_end()
// without TLS.
void Handshake::read_end_before_tls() {
  if (tls_ == nullptr || tls_->established() || state_ != State::kSendHello) return;
  std::array<std::byte, kPrefixBytes> start;
  const ssize_t got = ::recv(fd_, start.data(), start.size(), MSG_PEEK | MSG_DONTWAIT);
  if (got != static_cast<ssize_t>(start.size()) || !starts_like(start, kChallengeMagic) ||
      read_prefix(start).kind != static_cast<uint8_t>(Refusal::kEnded)) {
    return;
  }
  tls_ = nullptr;
  out_.clear();
  state_ = State::kReadPrefix;
}

// Returns true when the TLS handshake is done.
bool Handshake::shake_hands_of_tls() {
  switch (tls_->shake_hands()) {
    case TlsSession::Step::kDone:
      return true;
    case TlsSession::Step::kWantRead:
      blocked_on_ = Step::kWantRead;
      return false;
    case TlsSession::Step::kWantWrite:
      blocked_on_ = Step::kWantWrite;
      return false;
    case TlsSession::Step::kFailed:
      break;
  }
  return fail(tls_->error()) != Step::kFailed;
}

ssize_t Handshake::send_some(const void* data, size_t size) {
  if (tls_ == nullptr) return ::send(fd_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
  const iovec piece{const_cast<void*>(data), size};
  return tls_->send(&piece, 1);
}

ssize_t Handshake::receive_some(void* data, size_t size) {
  if (tls_ == nullptr) return ::recv(fd_, data, size, MSG_DONTWAIT);
  const iovec piece{data, size};
  return tls_->receive(&piece, 1);
}

// Returns true when all of |out_| has been sent.
bool Handshake::send_out() {
  while (out_done_ < out_.size()) {
    const ssize_t sent = send_some(out_.data() + out_done_, out_.size() - out_done_);
    if (sent >= 0) {
      out_done_ += static_cast<size_t>(sent);
    } else if (errno == EAGAIN) {
      blocked_on_ = Step::kWantWrite;
      return false;
    } else if (errno != EINTR) {
      return fail(failure(errno, "handshake: send")) != Step::kFailed;
    }
  }
  if (tls_ != nullptr && !tls_->flush()) {
    blocked_on_ = Step::kWantWrite;
    return false;
  }
  out_.clear();
  out_done_ = 0;
  return true;
}

// Returns true when |in_| holds |size| bytes. Never reads more than that.
bool Handshake::fill_in(size_t size) {
  const size_t have = in_.size();
  size_t filled = have;
  in_.resize(size);
  int error = 0;
  ssize_t got = 0;
  while (filled < size) {
    got = receive_some(in_.data() + filled, size - filled);
    if (got > 0) {
      filled += static_cast<size_t>(got);
    } else if (got == 0 || errno != EINTR) {
      error = errno;
      break;
    }
  }
  in_.resize(filled);
  if (filled == size) return true;
  if (got < 0 && error == EAGAIN) {
    blocked_on_ = Step::kWantRead;
    return false;
  }
  if (state_ == State::kReadProof && (tls_ == nullptr || tls_->error().ok())) {
    return fail_with(Code::kPeerLost, "the peer left before it had proved the job secret");
  }
  const bool first = state_ == State::kReadPrefix || state_ == State::kReadHello;
  if (tls_ == nullptr && first && is_tls_record(in_)) return refuse_foreign_peer();
  if (got == 0) {
    return fail_with(Code::kPeerLost, filled == 0 ? "the peer closed the connection without a word"
                                                  : "the peer closed the connection");
  }
  return fail(failure(error, "handshake: receive")) != Step::kFailed;
}

// Returns the failure for |error|. The text from TLS is more specific than the errno.
Status Handshake::failure(int error, std::string_view what) const {
  return tls_ != nullptr && !tls_->error().ok() ? tls_->error() : status_from_errno(error, what);
}

// Rejects a foreign peer, and always returns false. If the peer sent a TLS record, it may be a
// process of the job with TLS switched on. It is then sent the start of a plain message, from which
// it recognizes the reason. The peer's bytes are read first, for the reason given at
// finish_refusal().
bool Handshake::refuse_foreign_peer() {
  if (tls_ != nullptr || !is_tls_record(in_)) {
    return fail_with(Code::kPermissionDenied, "the other side is not a hetcomm peer",
                     Denial::kOther);
  }
  std::array<std::byte, 2048> unread;
  [[maybe_unused]] ssize_t ignored = ::recv(fd_, unread.data(), unread.size(), MSG_DONTWAIT);
  ignored =
      ::send(fd_, kChallengeMagic.data(), kChallengeMagic.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return fail_with(
      Code::kPermissionDenied,
      "the other side is not a hetcomm peer, or takes TLS only, which this process does not "
      "have: set HETCOMM_TLS alike on all ranks",
      Denial::kOther);
}

// Checks each byte as it arrives, since a foreign service may send less than a prefix and then
// wait.
bool Handshake::read_hello_prefix() {
  const bool complete = fill_in(kPrefixBytes);
  if (state_ == State::kFailed) return false;
  if (!starts_like(in_, kHelloMagic)) return refuse_foreign_peer();
  if (!complete) return false;
  const Prefix prefix = read_prefix(in_);
  if (Status status = check_protocol(prefix); !status.ok()) {
    transcript_ = in_;
    error_ = std::move(status);
    denial_ = Denial::kOther;
    start_challenge(Refusal::kProtocol);
    return true;
  }
  if (prefix.extra_size > kMaxHelloExtra) {
    return fail_with(Code::kPermissionDenied, "the peer has sent a malformed hello");
  }
  hello_.role = static_cast<Role>(prefix.kind);
  extra_size_ = prefix.extra_size;
  state_ = State::kReadClaim;
  return true;
}

bool Handshake::read_claim() {
  if (!fill_in(kPrefixBytes + kClaimBytes + extra_size_)) return false;
  ByteReader reader(ConstByteSpan(in_).subspan(kPrefixBytes));
  hello_.identity = read_identity(reader);
  hello_.source = reader.read<int32_t>();
  hello_.destination = reader.read<int32_t>();
  hello_.source_incarnation = reader.read<uint64_t>();
  hello_.destination_incarnation = reader.read<uint64_t>();
  reader.read_raw(kNonceBytes);
  const ConstByteSpan extra = reader.read_raw(extra_size_);
  hello_.extra.assign(extra.begin(), extra.end());
  transcript_ = std::move(in_);
  in_.clear();
  has_claim_ = true;

  const Refusal refusal = judge_claim();
  if (refusal != Refusal::kNone) {
    denial_ = refusal == Refusal::kIdentity ? Denial::kIdentity : Denial::kOther;
  }
  if (refusal == Refusal::kRole) {
    error_ = Status(Code::kPermissionDenied, "the peer wants another kind of connection");
  } else if (refusal == Refusal::kIdentity) {
    error_ = Status(Code::kPermissionDenied, kAnotherJob);
  } else if (refusal == Refusal::kRank) {
    error_ = Status(
        Code::kPermissionDenied,
        fmt::format("the peer looks for rank {}, this is rank {}", hello_.destination, rank_));
  } else if (refusal == Refusal::kIncarnation) {
    error_ = Status(
        Code::kPermissionDenied,
        hello_.destination_incarnation != credentials_.incarnation_of(rank_)
            ? fmt::format("the peer looks for a process that was rank {} before", rank_)
            : fmt::format("the peer is not the process that joined as rank {}", hello_.source));
  }
  start_challenge(refusal);
  return true;
}

Handshake::Refusal Handshake::judge_claim() const {
  if (hello_.role != role_) return Refusal::kRole;
  if (!any_identity_ && hello_.identity != credentials_.identity) return Refusal::kIdentity;
  if (hello_.destination != rank_) return Refusal::kRank;
  if (!any_identity_ && (hello_.destination_incarnation != credentials_.incarnation_of(rank_) ||
                         hello_.source_incarnation != credentials_.incarnation_of(hello_.source))) {
    return Refusal::kIncarnation;
  }
  return Refusal::kNone;
}

// Reads the rest of a hello that was not understood, and then fails the handshake. Always returns
// true. Closing with unread bytes would reset the connection, and the initiator might not receive
// the reason.
bool Handshake::finish_refusal() {
  std::array<std::byte, kClaimBytes + kMaxHelloExtra> unread;
  [[maybe_unused]] const ssize_t ignored = ::recv(fd_, unread.data(), unread.size(), MSG_DONTWAIT);
  fail(error_);
  return true;
}

void Handshake::start_challenge(Refusal refusal) {
  std::array<std::byte, kNonceBytes> nonce{};
  if (Status status = fill_random(nonce); !status.ok()) {
    fail(std::move(status));
    return;
  }
  ByteWriter writer;
  write_prefix(writer, kChallengeMagic, static_cast<uint8_t>(refusal), 0);
  writer.write(credentials_.incarnation_of(rank_));
  writer.write_raw(nonce);
  transcript_.insert(transcript_.end(), writer.bytes().begin(), writer.bytes().end());
  acceptor_proof_ = proof_of(kAcceptorLabel, {});
  writer.write_raw(acceptor_proof_);
  out_ = writer.take();
  state_ = refusal == Refusal::kNone ? State::kSendChallenge : State::kSendRefusal;
}

bool Handshake::read_challenge_prefix() {
  const bool complete = fill_in(kPrefixBytes);
  if (state_ == State::kFailed) return false;
  if (!starts_like(in_, kChallengeMagic)) return refuse_foreign_peer();
  if (!complete) return false;
  const Prefix prefix = read_prefix(in_);
  // In another version the message of encode_end() may have another layout, so the version is
  // checked first.
  if (Status status = check_protocol(prefix); !status.ok()) {
    denial_ = Denial::kOther;
    return fail(std::move(status)) != Step::kFailed;
  }
  if (prefix.kind == static_cast<uint8_t>(Refusal::kEnded)) {
    extra_size_ = prefix.extra_size;
    state_ = State::kReadEnd;
    return true;
  }
  state_ = State::kReadChallenge;
  return true;
}

bool Handshake::read_end() {
  if (extra_size_ < kEndBytes || extra_size_ > kMaxHelloExtra) {
    return fail_with(Code::kPermissionDenied, "the other side is not a hetcomm peer",
                     Denial::kOther);
  }
  if (!fill_in(kPrefixBytes + extra_size_)) return false;
  ByteReader reader(ConstByteSpan(in_).subspan(kPrefixBytes));
  if (read_identity(reader) != hello_.identity) {
    return fail_with(Code::kPermissionDenied, kAnotherJob, Denial::kIdentity);
  }
  const Code code = code_of_end(reader.read<int32_t>());
  const ConstByteSpan text = reader.read_raw(reader.left());
  return fail_with(code, printable({reinterpret_cast<const char*>(text.data()), text.size()}),
                   Denial::kEnded);
}

// Sends zeros in place of the proof, fails, and always returns false. The zeros reveal nothing
// about the secret. If the zeros are lost, the acceptor merely does not learn the reason.
bool Handshake::leave_unconvinced() {
  constexpr std::array<std::byte, kProofBytes> kNotConvinced{};
  [[maybe_unused]] const ssize_t sent = send_some(kNotConvinced.data(), kNotConvinced.size());
  if (tls_ != nullptr) (void)tls_->flush();
  return fail_with(
      Code::kPermissionDenied,
      "the peer does not prove the job secret: its HETCOMM_SECRET differs, or it has none",
      Denial::kSecret);
}

bool Handshake::read_challenge() {
  if (!fill_in(kPrefixBytes + kAnswerBytes + kProofBytes)) return false;
  const ConstByteSpan all(in_);
  const ConstByteSpan proof = all.last(kProofBytes);
  const ConstByteSpan claimed = all.first(kPrefixBytes + kAnswerBytes);
  transcript_.insert(transcript_.end(), claimed.begin(), claimed.end());
  acceptor_proof_ = proof_of(kAcceptorLabel, {});
  if (!equal_in_constant_time(acceptor_proof_, proof)) return leave_unconvinced();
  ByteReader reader(all.subspan(kPrefixBytes));
  acceptor_incarnation_ = reader.read<uint64_t>();
  const auto refusal = static_cast<Refusal>(read_prefix(in_).kind);
  if (Status judged = judge_challenge(refusal); !judged.ok()) {
    denial_ = refusal == Refusal::kIdentity ? Denial::kIdentity : Denial::kOther;
    return fail(std::move(judged)) != Step::kFailed;
  }
  const Digest mine = proof_of(kInitiatorLabel, acceptor_proof_);
  out_.assign(mine.begin(), mine.end());
  state_ = State::kSendProof;
  return true;
}

Status Handshake::judge_challenge(Refusal refusal) const {
  const bool expected = acceptor_incarnation_ == hello_.destination_incarnation;
  switch (refusal) {
    case Refusal::kNone:
      if (expected) return {};
      [[fallthrough]];
    case Refusal::kIncarnation:
      return Status(
          Code::kPermissionDenied,
          expected
              ? fmt::format("the peer expects another process as rank {}", hello_.source)
              : fmt::format("another process than the one that joined as rank {} listens there",
                            hello_.destination));
    case Refusal::kRole:
      return Status(Code::kPermissionDenied, "the peer takes another kind of connection");
    case Refusal::kIdentity:
      return Status(Code::kPermissionDenied, kAnotherJob);
    case Refusal::kRank:
      return Status(Code::kPermissionDenied,
                    fmt::format("the peer is not rank {}", hello_.destination));
    case Refusal::kProtocol:
    case Refusal::kEnded:
      break;
  }
  return Status(Code::kUnsupported,
                "the peer refuses this process's version or features: use the same release of "
                "hetcomm everywhere");
}

bool Handshake::read_proof() {
  if (!fill_in(kProofBytes)) return false;
  if (std::all_of(in_.begin(), in_.end(), [](std::byte byte) { return byte == std::byte{0}; })) {
    return fail_with(Code::kPermissionDenied,
                     "the peer has another job secret: its HETCOMM_SECRET differs, or it has none",
                     Denial::kSecret);
  }
  const Digest expected = proof_of(kInitiatorLabel, acceptor_proof_);
  if (!equal_in_constant_time(expected, in_)) {
    return fail_with(Code::kPermissionDenied,
                     "the peer does not prove the job secret: its HETCOMM_SECRET differs",
                     Denial::kSecret);
  }
  state_ = State::kDone;
  return true;
}

Digest Handshake::proof_of(std::string_view label, ConstByteSpan rest) const {
  ByteWriter writer;
  writer.write_string(label);
  writer.write_bytes(transcript_);
  writer.write_bytes(rest);
  return hmac_sha256(credentials_.secret, writer.bytes());
}

Handshake::Step Handshake::fail(Status status) {
  error_ = std::move(status);
  state_ = State::kFailed;
  out_.clear();
  ::shutdown(fd_, SHUT_RDWR);
  return Step::kFailed;
}

bool Handshake::fail_with(Code code, std::string text, Denial denial) {
  denial_ = denial;
  fail(Status(code, std::move(text)));
  return false;
}

}  // namespace hetcomm
