#include "transports/tcp/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/base/bytes.h"

namespace hetcomm::tcp {
namespace {

constexpr uint8_t kDescriptorVersion = 1;
constexpr uint8_t kStreamNameVersion = 1;

template <typename T>
T to_little(T value) {
  if constexpr (std::endian::native == std::endian::big) {
    if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
    if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
  }
  return value;
}

template <typename T>
void store(std::byte* to, T value) {
  value = to_little(value);
  std::memcpy(to, &value, sizeof(value));
}

template <typename T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return to_little(value);
}

void encode_prefix(HeadBytes& out, FrameType type, uint32_t length) {
  store(out.data(), static_cast<uint32_t>(type));
  store(out.data() + 4, length);
}

bool all_zero(ConstByteSpan bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

}  // namespace

RemoteKey make_key(uint32_t slot, uint32_t generation, uint64_t nonce) {
  RemoteKey key;
  key.words[0] = slot | static_cast<uint64_t>(generation) << 32;
  key.words[1] = nonce;
  return key;
}

PutTarget put_target(const RemoteKey& key, uint64_t offset) {
  return {.slot = static_cast<uint32_t>(key.words[0]),
          .generation = static_cast<uint32_t>(key.words[0] >> 32),
          .nonce = key.words[1],
          .offset = offset};
}

void encode_message_head(HeadBytes& out, const MessageHeader& header, uint32_t length) {
  encode_prefix(out, FrameType::kMessage, length);
  std::memcpy(out.data() + kHeadPrefix, header.data(), kHeaderBytes);
}

void encode_put_head(HeadBytes& out, const PutTarget& target, uint32_t length) {
  encode_prefix(out, FrameType::kPut, length);
  store(out.data() + 8, target.slot);
  store(out.data() + 12, target.generation);
  store(out.data() + 16, target.nonce);
  store(out.data() + 24, target.offset);
  store(out.data() + 32, uint64_t{0});
}

void encode_streams_head(HeadBytes& out, const StreamsNote& note) {
  out.fill(std::byte{0});
  encode_prefix(out, FrameType::kStreams, 0);
  out[8] = static_cast<std::byte>(note.kind);
  out[9] = static_cast<std::byte>(note.count);
}

FrameHead decode_head(const std::byte* head, bool bulk_stream) {
  const uint32_t type = load<uint32_t>(head);
  const uint32_t length = load<uint32_t>(head + 4);
  FrameHead result{.type = static_cast<FrameType>(type), .length = length};
  switch (type) {
    case static_cast<uint32_t>(FrameType::kMessage):
      if (bulk_stream) result.error = "message on a bulk stream";
      if (length > kMaxMessageBytes) result.error = "message is too long";
      break;
    case static_cast<uint32_t>(FrameType::kPut):
      if (length == 0) result.error = "empty put frame";
      if (length > (bulk_stream ? kMaxPutBytes : kMaxFragmentBytes)) {
        result.error = "put frame is too long";
      }
      break;
    case static_cast<uint32_t>(FrameType::kStreams):
      if (bulk_stream || length != 0) result.error = "malformed streams frame";
      break;
    default:
      result.error = "unknown frame type";
      break;
  }
  return result;
}

std::optional<PutTarget> decode_put(const std::byte* head) {
  if (load<uint64_t>(head + 32) != 0) return std::nullopt;
  return PutTarget{.slot = load<uint32_t>(head + 8),
                   .generation = load<uint32_t>(head + 12),
                   .nonce = load<uint64_t>(head + 16),
                   .offset = load<uint64_t>(head + 24)};
}

std::optional<StreamsNote> decode_streams(const std::byte* head) {
  const uint8_t kind = std::to_integer<uint8_t>(head[8]);
  const uint8_t count = std::to_integer<uint8_t>(head[9]);
  const bool known = kind == static_cast<uint8_t>(StreamsNote::Kind::kWanted) ||
                     kind == static_cast<uint8_t>(StreamsNote::Kind::kUnavailable);
  if (!known || count > kMaxBulkStreams) return std::nullopt;
  if (!all_zero({head + 10, kHeadBytes - 10})) return std::nullopt;
  return StreamsNote{.kind = static_cast<StreamsNote::Kind>(kind), .count = count};
}

std::vector<std::byte> encode_contact(const ListeningHost& host) {
  ByteWriter writer;
  writer.write(kDescriptorVersion);
  host.encode(writer);
  return writer.take();
}

Result<ListeningHost> decode_contact(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  const bool known = reader.read<uint8_t>() == kDescriptorVersion;
  std::optional<ListeningHost> host = ListeningHost::decode(reader);
  if (!known || !host || !reader.finished()) {
    return Status(Code::kInvalidArgument, "malformed tcp contact");
  }
  return std::move(*host);
}

std::vector<std::byte> encode_stream_name(const StreamName& name) {
  ByteWriter writer;
  writer.write(kStreamNameVersion);
  writer.write_raw(name.connection);
  writer.write(name.index);
  return writer.take();
}

std::optional<StreamName> decode_stream_name(ConstByteSpan extra) {
  ByteReader reader(extra);
  if (reader.read<uint8_t>() != kStreamNameVersion) return std::nullopt;
  StreamName name;
  const ConstByteSpan id = reader.read_raw(name.connection.size());
  std::copy(id.begin(), id.end(), name.connection.begin());
  name.index = reader.read<uint8_t>();
  if (!reader.finished() || name.index > kMaxBulkStreams) return std::nullopt;
  return name;
}

}  // namespace hetcomm::tcp
