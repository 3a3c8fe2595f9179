// Encodes and decodes the wire format of tcp: frames on a stream, the contact, and the extra bytes
// of the hello.
//
// Every frame starts with a head of kHeadBytes. All numbers are little endian. Bytes without a
// meaning must be zero, which is checked. Decoding treats its input as hostile. Failures are static
// texts, so that nothing has to be formatted before a connection is known to be broken.
//
//   byte 0      type            4-7   number of bytes that follow the head
//   bytes 8-39  kMessage: core's header; payload follows
//               kPut:     slot, generation (u32), nonce, offset (u64), zero (u64); data follows
//               kStreams: kind of the note, number of bulk streams (u8), zero; nothing follows
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "src/base/span.h"
#include "src/base/status.h"
#include "src/net/listening_host.h"
#include "transports/transport.h"

namespace hetcomm::tcp {

enum class FrameType : uint8_t { kMessage = 1, kPut = 2, kStreams = 3 };

inline constexpr size_t kHeadPrefix = 8;
inline constexpr size_t kHeadBytes = kHeadPrefix + kHeaderBytes;
inline constexpr uint32_t kMaxMessageBytes = 64u << 10;
// Largest put frame on a bulk stream.
inline constexpr uint32_t kMaxPutBytes = 64u << 20;
// Largest put frame on stream 0. Larger frames would delay messages there.
inline constexpr uint32_t kMaxFragmentBytes = 64u << 10;
// Stream 0 carries messages; 1 to kMaxBulkStreams carry puts.
inline constexpr size_t kMaxBulkStreams = 8;

using HeadBytes = std::array<std::byte, kHeadBytes>;

// The target of a put: an exposure's token and an offset within the exposure.
struct PutTarget {
  uint32_t slot = 0;
  uint32_t generation = 0;
  uint64_t nonce = 0;
  uint64_t offset = 0;
};

// A note about the bulk streams of a connection. Only the lower rank can open them.
struct StreamsNote {
  enum class Kind : uint8_t { kWanted = 1, kUnavailable = 2 };
  Kind kind = Kind::kWanted;
  uint8_t count = 0;
};

RemoteKey make_key(uint32_t slot, uint32_t generation, uint64_t nonce);
PutTarget put_target(const RemoteKey& key, uint64_t offset);

void encode_message_head(HeadBytes& out, const MessageHeader& header, uint32_t length);
void encode_put_head(HeadBytes& out, const PutTarget& target, uint32_t length);
void encode_streams_head(HeadBytes& out, const StreamsNote& note);

// The type and length in a decoded head. |error| is null if the head is valid on its kind of
// stream. Otherwise it describes the fault.
struct FrameHead {
  FrameType type = FrameType::kMessage;
  uint32_t length = 0;
  const char* error = nullptr;
};
FrameHead decode_head(const std::byte* head, bool bulk_stream);
// These decode the rest of a head of their type. They return nullopt if the head is malformed.
std::optional<PutTarget> decode_put(const std::byte* head);
std::optional<StreamsNote> decode_streams(const std::byte* head);

// The contact describes where a process listens.
std::vector<std::byte> encode_contact(const ListeningHost& host);
Result<ListeningHost> decode_contact(ConstByteSpan bytes);

// Identifies one connection. All its streams carry the same id.
using ConnectionId = std::array<std::byte, 16>;
struct StreamName {
  ConnectionId connection{};
  uint8_t index = 0;
};
std::vector<std::byte> encode_stream_name(const StreamName& name);
std::optional<StreamName> decode_stream_name(ConstByteSpan extra);

}  // namespace hetcomm::tcp
