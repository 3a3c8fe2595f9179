// Encodes and decodes the wire format of rdma: the contact, the parameters that two queue pairs
// exchange before they are connected, the head of a message, keys, and the immediate of a put. All
// numbers are little endian unless the hardware requires otherwise. Decoding treats its input as
// hostile.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/address.h"
#include "src/net/listening_host.h"
#include "transports/rdma/nic.h"
#include "transports/transport.h"

namespace hetcomm::rdma {

// --- before there is a connection ------------------------------------------------------------

inline constexpr size_t kMaxGids = 8;

// The contact describes how to reach a process.
struct Contact {
  ListeningHost host;  // where the TCP listener listens
  bool ethernet = true;
  bool by_cm = false;     // true: establishes connections with rdma_cm
  std::vector<Gid> gids;  // best first; without indices
  std::string nic;        // the port's name, for error texts
};
std::vector<std::byte> encode_contact(const Contact& contact);
Result<Contact> decode_contact(ConstByteSpan bytes);

// Queue pair parameters that the peer needs.
struct Parameters {
  uint32_t queue_pair = 0;
  uint32_t packet_sequence = 0;
  uint16_t lid = 0;
  ibv_mtu mtu = IBV_MTU_1024;
  uint8_t read_depth = 0;   // concurrent reads by the peer that the sender serves
  uint16_t credits = 0;     // receives posted for the peer
  uint32_t slot_bytes = 0;  // size of each receive
  GidKind kind = GidKind::kRoceV2Ipv4;
  GidBytes gid{};       // the sender's address
  GidBytes peer_gid{};  // the receiver's address, as used by the sender
};
inline constexpr size_t kParametersBytes = 52;
std::vector<std::byte> encode_parameters(const Parameters& parameters);
std::optional<Parameters> decode_parameters(ConstByteSpan bytes);

// An invitation to connect with rdma_cm: the address to contact, and the token to present.
inline constexpr size_t kCmTokenBytes = 32;
using CmToken = std::array<std::byte, kCmTokenBytes>;
struct CmInvitation {
  Address address;
  CmToken token{};
};

// The accepting side's answer on the TCP connection. The connecting side replies with kReadyByte.
struct Answer {
  Parameters parameters;
  std::optional<CmInvitation> invitation;
};
inline constexpr size_t kAnswerBytes = 256;
using AnswerBytes = std::array<std::byte, kAnswerBytes>;
AnswerBytes encode_answer(const Answer& answer);
AnswerBytes encode_refusal(std::string_view why);
// Decodes an answer. Fails if the answer is a refusal or malformed.
Result<Answer> decode_answer(const AnswerBytes& bytes);
inline constexpr std::byte kReadyByte{0x52};

// --- messages --------------------------------------------------------------------------------

//   byte 0 type   1-2 credits   [3-6 mask   bytes of core's header   payload]
//
// Only the bytes of core's header that differ from the previous message on this connection are
// sent. Bit i of the mask stands for byte i. Both ends therefore store the previous header. Usually
// few bytes differ, so a typical head has 9 to 12 bytes.
enum class HeadType : uint8_t { kMessage = 1, kCredits = 2, kFragment = 3 };
inline constexpr size_t kCreditsHeadBytes = 3;
inline constexpr size_t kMaxHeadBytes = kCreditsHeadBytes + 4 + kHeaderBytes;
void encode_credits(std::byte* out, uint16_t credits);
// Encodes a head and returns its size. Sets |before| to |header|.
size_t encode_head(std::byte* out, uint16_t credits, const MessageHeader& header,
                   MessageHeader& before);
//   byte 0 type   1-2 credits   3-6 immediate   7-14 offset   bytes of a put
//
// This is the head of a fragment of a put to memory that the device cannot write
// (KeyKind::kCopiedTarget).
inline constexpr size_t kFragmentHeadBytes = kCreditsHeadBytes + 4 + 8;
struct FragmentHead {
  uint32_t immediate = 0;  // from the key
  uint64_t offset = 0;     // within the exposed memory
};
void encode_fragment_head(std::byte* out, uint16_t credits, const FragmentHead& fragment);
// Decodes a message head that decode_head() has identified as a fragment.
FragmentHead decode_fragment_head(const std::byte* bytes);
struct Head {
  HeadType type = HeadType::kMessage;
  uint16_t credits = 0;
  size_t size = 0;
};
// Decodes the head of a message of |size| bytes; returns nullopt if it is malformed. |header| holds
// the previous message's header, and is replaced by this message's header if the type is kMessage.
std::optional<Head> decode_head(const std::byte* bytes, size_t size, MessageHeader& header);

// --- one-sided -------------------------------------------------------------------------------

// kCopiedTarget stands for memory that could not be registered. A put to it is sent in messages,
// and the target's CPU copies the bytes.
enum class KeyKind : uint8_t { kWriteTarget = 1, kGetSource = 2, kRegion = 3, kCopiedTarget = 4 };

// The contents of this transport's RemoteKey.
struct Key {
  uint64_t address = 0;
  uint64_t length = 0;  // less than 2^48
  uint32_t rkey = 0;
  // kRegion: a mask of kRegionReadable and kRegionWritable. Otherwise: slot and generation.
  uint32_t immediate = 0;
  KeyKind kind = KeyKind::kWriteTarget;
};
inline constexpr uint32_t kRegionReadable = 1;
inline constexpr uint32_t kRegionWritable = 2;
inline constexpr uint64_t kMaxKeyBytes = uint64_t{1} << 48;
RemoteKey encode_key(const Key& key);
std::optional<Key> decode_key(const RemoteKey& key);

// Exposure slot and generation, packed into the 32-bit immediate of a write.
inline constexpr uint32_t kSlotBits = 14;
inline constexpr uint32_t kMaxExposures = 1u << kSlotBits;
inline constexpr uint32_t kGenerationMask = (1u << (32 - kSlotBits)) - 1;
inline uint32_t make_immediate(uint32_t slot, uint32_t generation) {
  return slot | (generation & kGenerationMask) << kSlotBits;
}
inline uint32_t slot_of(uint32_t immediate) { return immediate & (kMaxExposures - 1); }
inline uint32_t generation_of(uint32_t immediate) { return immediate >> kSlotBits; }

}  // namespace hetcomm::rdma
