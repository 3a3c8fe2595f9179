// Handshake performs the proof at the start of every connection, on TCP and local sockets alike.
//
// Both sides prove knowledge of the job secret by HMAC-SHA256 over the whole transcript: magic,
// protocol range, feature bits, byte order, role, job, epoch, instance, both ranks and
// incarnations, both nonces and the initiator's extra bytes. A replayed hello fails, because the
// other nonce is fresh. A reflected proof fails, because each direction has its own label. Until
// the proof has succeeded, nothing that the peer sends is trusted and no memory beyond a fixed
// buffer is used.
//
//   initiator                         acceptor
//     hello (nonce, who, extra)  -->
//                                <--  challenge (own incarnation,
//                                     nonce, proof)                initiator checks the proof first
//     proof                      -->                                acceptor checks, then believes
//
// An initiator that rejects the challenge sends 32 zero bytes in place of its proof, which tell the
// acceptor the reason. An initiator that disconnects without them has abandoned the attempt or
// exited. An acceptor that does not match the hello (another version, role, job, epoch, instance,
// rank or incarnation) reports this inside its challenge. After a failure the socket is shut down,
// so that the other side fails too.
//
// A process that cannot take part answers with encode_end(), in place of a challenge or of the
// first TLS record. This answer proves nothing: the initiator uses only its code and text, and only
// if its identity is the initiator's.
//
// A challenge proves the acceptor's incarnation even when it contains a refusal. An initiator that
// reads an unexpected incarnation can conclude that the expected process no longer listens there.
//
// A handshake reads only its own bytes, so that later bytes of the stream are left for the user.
//
// With TLS, the TLS handshake comes first, and the exchange above goes through the TLS session.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/credentials.h"
#include "src/net/hash.h"

namespace hetcomm {

// The longest time that a handshake may take before the acceptor drops the connection.
inline constexpr uint64_t kHandshakeTimeoutNs = 10'000'000'000;

inline constexpr uint16_t kProtocolVersion = 5;
inline constexpr size_t kMaxHelloExtra = 512;
inline constexpr size_t kMaxHelloBytes = 112 + kMaxHelloExtra;

// The purpose of a connection. The proof covers it, so a connection of one kind is not accepted as
// another.
enum class Role : uint8_t { kStore = 1, kControl = 2, kTcp = 3, kShm = 4, kRdma = 5, kRelay = 6 };

struct Hello {
  Role role = Role::kTcp;
  Identity identity;
  int32_t source = 0;       // rank of the initiator
  int32_t destination = 0;  // rank of the acceptor
  uint64_t source_incarnation = 0;
  uint64_t destination_incarnation = 0;  // expected by the initiator
  std::vector<std::byte> extra;
};

// The reason for which a handshake failed, for callers that decide how to continue.
enum class Denial : uint8_t {
  kNone,      // not failed, or the other side gave no reason
  kSecret,    // the two sides have different secrets
  kIdentity,  // another job, epoch or communicator
  kEnded,     // the other side has failed and reports why (encode_end)
  kOther      // another version, role, rank or process, or another service
};

// Returns the unproved rank in a hello, or nothing if |bytes| is not a hello of |identity| or ends
// before the nonce does.
std::optional<int32_t> claimed_rank(ConstByteSpan bytes, const Identity& identity);

// Encodes the answer of a process of |identity| that cannot take part. |why| is the reason.
std::vector<std::byte> encode_end(const Identity& identity, const Status& why);

// Makes the hello from |source| to |destination|, with the identity and incarnations in
// |credentials|.
Hello make_hello(const Credentials& credentials, Role role, int32_t source, int32_t destination);

class TlsSession;

// Performs one side of the exchange on a non-blocking stream socket. The caller owns and polls the
// socket.
class Handshake {
 public:
  enum class Step : uint8_t { kWantRead, kWantWrite, kDone, kFailed };

  // Makes the initiator's side. |mine| is the hello that it sends. |tls|, if any, is a session on
  // |fd| and must outlive the handshake.
  static Handshake initiator(int fd, const Secret& secret, Hello mine, TlsSession* tls = nullptr);
  // Makes the acceptor's side. Accepts only hellos of |role| that match the identity and the
  // incarnations of |credentials|, with |rank| as destination. With |any_identity|, identities and
  // incarnations are not compared (the store).
  static Handshake acceptor(int fd, const Credentials& credentials, Role role, int32_t rank,
                            bool any_identity = false, TlsSession* tls = nullptr);

  // Advances as far as possible without blocking. Must not be called after kDone or kFailed.
  Step advance();
  // Returns the reason for kFailed ("peer does not prove the job secret", "not a hetcomm peer",
  // ...).
  const Status& error() const { return error_; }
  Denial denial() const { return denial_; }
  // Returns the initiator's hello. On the acceptor it is proved after kDone, and unproved after
  // kFailed.
  const Hello& peer() const { return hello_; }
  // Returns whether the acceptor has read the whole hello.
  bool has_claim() const { return has_claim_; }
  // Returns the incarnation that the acceptor has proved to this initiator, even after kFailed.
  // Returns nothing before the proof was checked.
  std::optional<uint64_t> acceptor_incarnation() const { return acceptor_incarnation_; }
  // Returns whether the peer has sent anything. If not, the failure may come from a port scan.
  bool peer_spoke() const;

 private:
  enum class State : uint8_t {
    kSendHello,      // initiator
    kReadPrefix,     // initiator: the part of a challenge that every version has
    kReadChallenge,  // initiator
    kReadEnd,        // initiator: the rest of a message from encode_end()
    kSendProof,      // initiator
    kReadHello,      // acceptor: the part of a hello that every version has
    kReadClaim,      // acceptor
    kSendChallenge,  // acceptor
    kSendRefusal,    // acceptor
    kReadProof,      // acceptor
    kDone,
    kFailed
  };
  // The reason for which an acceptor refuses. It is sent inside the proved part of the challenge.
  // Only encode_end() uses kEnded.
  enum class Refusal : uint8_t { kNone, kProtocol, kRole, kIdentity, kRank, kIncarnation, kEnded };
  friend std::vector<std::byte> encode_end(const Identity& identity, const Status& why);

  Handshake() = default;
  bool shake_hands_of_tls();
  void read_end_before_tls();
  ssize_t send_some(const void* data, size_t size);
  ssize_t receive_some(void* data, size_t size);
  bool send_out();
  bool fill_in(size_t size);
  bool refuse_foreign_peer();
  bool step();
  bool read_hello_prefix();
  bool read_claim();
  bool read_challenge_prefix();
  bool read_challenge();
  bool read_end();
  bool leave_unconvinced();
  Status judge_challenge(Refusal refusal) const;
  bool read_proof();
  void start_challenge(Refusal refusal);
  Refusal judge_claim() const;
  bool finish_refusal();
  Digest proof_of(std::string_view label, ConstByteSpan rest) const;
  Status failure(int error, std::string_view what) const;
  Step fail(Status status);
  bool fail_with(Code code, std::string text, Denial denial = Denial::kNone);

  int fd_ = -1;
  TlsSession* tls_ = nullptr;
  State state_ = State::kFailed;
  Step blocked_on_ = Step::kWantRead;
  Credentials credentials_;
  Role role_ = Role::kTcp;
  int32_t rank_ = 0;
  bool any_identity_ = false;
  Hello hello_;
  size_t extra_size_ = 0;
  std::vector<std::byte> transcript_;  // all bytes sent and received before the proofs
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
  size_t out_done_ = 0;
  Digest acceptor_proof_{};
  std::optional<uint64_t> acceptor_incarnation_;
  Status error_;
  Denial denial_ = Denial::kNone;
  bool has_claim_ = false;
};

}  // namespace hetcomm
