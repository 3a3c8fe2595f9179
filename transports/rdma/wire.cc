#include "transports/rdma/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/base/bytes.h"

namespace hetcomm::rdma {
namespace {

constexpr uint8_t kDescriptorVersion = 2;
constexpr uint8_t kParametersVersion = 2;
constexpr uint8_t kAccepted = 1;
constexpr uint8_t kRefused = 2;
constexpr size_t kMaxNameBytes = 40;

constexpr size_t kMaskAt = kCreditsHeadBytes;
constexpr size_t kFixedHeadBytes = kMaskAt + sizeof(uint32_t);

template <typename T>
void write_le(std::byte* out, T value) {
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(out, &value, sizeof(value));
  } else {
    for (size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<std::byte>(value >> (8 * i));
  }
}
template <typename T>
T read_le(const std::byte* in) {
  T value = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, in, sizeof(value));
  } else {
    for (size_t i = 0; i < sizeof(T); ++i)
      value |= static_cast<T>(std::to_integer<T>(in[i]) << (8 * i));
  }
  return value;
}

bool is_kind(uint8_t value) {
  return value >= static_cast<uint8_t>(GidKind::kRoceV2Ipv4) &&
         value <= static_cast<uint8_t>(GidKind::kInfiniBand);
}

GidBytes read_gid(ByteReader& reader) {
  GidBytes gid{};
  const ConstByteSpan raw = reader.read_raw(gid.size());
  std::copy(raw.begin(), raw.end(), gid.begin());
  return gid;
}

}  // namespace

std::vector<std::byte> encode_contact(const Contact& contact) {
  ByteWriter writer;
  writer.write(kDescriptorVersion);
  contact.host.encode(writer);
  writer.write(static_cast<uint8_t>(contact.ethernet ? 1 : 2));
  writer.write(static_cast<uint8_t>(contact.by_cm ? 2 : 1));
  const size_t gids = std::min(contact.gids.size(), kMaxGids);
  writer.write(static_cast<uint8_t>(gids));
  for (size_t i = 0; i < gids; ++i) {
    writer.write(static_cast<uint8_t>(contact.gids[i].kind));
    writer.write_raw(contact.gids[i].bytes);
  }
  writer.write_string(std::string_view(contact.nic).substr(0, kMaxNameBytes));
  return writer.take();
}

Result<Contact> decode_contact(ConstByteSpan bytes) {
  const Status malformed(Code::kInvalidArgument, "malformed rdma contact");
  ByteReader reader(bytes);
  if (reader.read<uint8_t>() != kDescriptorVersion) return malformed;
  Contact contact;
  std::optional<ListeningHost> host = ListeningHost::decode(reader);
  if (!host) return malformed;
  contact.host = std::move(*host);
  const uint8_t link = reader.read<uint8_t>();
  const uint8_t way = reader.read<uint8_t>();
  const uint8_t gids = reader.read<uint8_t>();
  if (reader.failed() || link < 1 || link > 2 || way < 1 || way > 2) return malformed;
  if (gids == 0 || gids > kMaxGids) return malformed;
  contact.ethernet = link == 1;
  contact.by_cm = way == 2;
  for (uint8_t i = 0; i < gids; ++i) {
    const uint8_t kind = reader.read<uint8_t>();
    Gid gid{.bytes = read_gid(reader)};
    if (!is_kind(kind)) return malformed;
    gid.kind = static_cast<GidKind>(kind);
    if ((gid.kind == GidKind::kInfiniBand) == contact.ethernet) return malformed;
    contact.gids.push_back(gid);
  }
  contact.nic = reader.read_string(kMaxNameBytes);
  if (!reader.finished()) return malformed;
  const bool printable = std::all_of(contact.nic.begin(), contact.nic.end(),
                                     [](char c) { return c > 0x20 && c < 0x7f; });
  if (!printable) return malformed;
  return contact;
}

std::vector<std::byte> encode_parameters(const Parameters& parameters) {
  ByteWriter writer;
  writer.write(kParametersVersion);
  writer.write(parameters.queue_pair);
  writer.write(parameters.packet_sequence);
  writer.write(parameters.lid);
  writer.write(static_cast<uint8_t>(parameters.mtu));
  writer.write(parameters.read_depth);
  writer.write(parameters.credits);
  writer.write(parameters.slot_bytes);
  writer.write(static_cast<uint8_t>(parameters.kind));
  writer.write_raw(parameters.gid);
  writer.write_raw(parameters.peer_gid);
  return writer.take();
}

std::optional<Parameters> decode_parameters(ConstByteSpan bytes) {
  ByteReader reader(bytes);
  if (reader.read<uint8_t>() != kParametersVersion) return std::nullopt;
  Parameters parameters;
  parameters.queue_pair = reader.read<uint32_t>();
  parameters.packet_sequence = reader.read<uint32_t>();
  parameters.lid = reader.read<uint16_t>();
  const uint8_t mtu = reader.read<uint8_t>();
  parameters.read_depth = reader.read<uint8_t>();
  parameters.credits = reader.read<uint16_t>();
  parameters.slot_bytes = reader.read<uint32_t>();
  const uint8_t kind = reader.read<uint8_t>();
  parameters.gid = read_gid(reader);
  parameters.peer_gid = read_gid(reader);
  if (!reader.finished()) return std::nullopt;
  if (mtu < IBV_MTU_256 || mtu > IBV_MTU_4096 || !is_kind(kind)) return std::nullopt;
  // With fewer credits the connection could stall; see credits.h.
  if (parameters.credits < 8 || parameters.slot_bytes < 1024 ||
      parameters.slot_bytes > (1u << 20)) {
    return std::nullopt;
  }
  if (parameters.queue_pair >= (1u << 24) || parameters.packet_sequence >= (1u << 24)) {
    return std::nullopt;
  }
  parameters.mtu = static_cast<ibv_mtu>(mtu);
  parameters.kind = static_cast<GidKind>(kind);
  return parameters;
}

AnswerBytes encode_answer(const Answer& answer) {
  AnswerBytes bytes{};
  bytes[0] = std::byte{kAccepted};
  ByteWriter writer;
  writer.write_raw(encode_parameters(answer.parameters));
  if (answer.invitation) {
    answer.invitation->address.encode(writer);
    writer.write_raw(answer.invitation->token);
  }
  const std::vector<std::byte> encoded = writer.take();
  bytes[1] = static_cast<std::byte>(encoded.size());
  std::copy(encoded.begin(), encoded.end(), bytes.begin() + 2);
  return bytes;
}

AnswerBytes encode_refusal(std::string_view why) {
  AnswerBytes bytes{};
  why = why.substr(0, kAnswerBytes - 2);
  bytes[0] = std::byte{kRefused};
  bytes[1] = static_cast<std::byte>(why.size());
  std::transform(why.begin(), why.end(), bytes.begin() + 2,
                 [](char c) { return static_cast<std::byte>(c); });
  return bytes;
}

Result<Answer> decode_answer(const AnswerBytes& bytes) {
  const size_t length = std::to_integer<size_t>(bytes[1]);
  if (length > kAnswerBytes - 2) return Status(Code::kPeerLost, "malformed answer");
  const ConstByteSpan body(bytes.data() + 2, length);
  if (bytes[0] == std::byte{kRefused}) {
    std::string why(reinterpret_cast<const char*>(body.data()), body.size());
    for (char& c : why) {
      if (c < 0x20 || c > 0x7e) c = '?';
    }
    return Status(Code::kPeerLost, "refused by the peer: " + why);
  }
  if (bytes[0] != std::byte{kAccepted}) return Status(Code::kPeerLost, "malformed answer");
  const Status malformed(Code::kPeerLost, "malformed answer");
  ByteReader reader(body);
  const std::optional<Parameters> parameters = decode_parameters(reader.read_raw(kParametersBytes));
  if (!parameters) return malformed;
  Answer answer{.parameters = *parameters, .invitation = {}};
  if (reader.finished()) return answer;
  Result<Address> address = Address::decode(reader);
  CmToken token{};
  const ConstByteSpan raw = reader.read_raw(token.size());
  if (!address.ok() || !reader.finished()) return malformed;
  std::copy(raw.begin(), raw.end(), token.begin());
  answer.invitation = {*address, token};
  return answer;
}

void encode_credits(std::byte* out, uint16_t credits) {
  out[0] = static_cast<std::byte>(HeadType::kCredits);
  write_le(out + 1, credits);
}

void encode_fragment_head(std::byte* out, uint16_t credits, const FragmentHead& fragment) {
  out[0] = static_cast<std::byte>(HeadType::kFragment);
  write_le(out + 1, credits);
  write_le(out + kCreditsHeadBytes, fragment.immediate);
  write_le(out + kCreditsHeadBytes + sizeof(fragment.immediate), fragment.offset);
}

FragmentHead decode_fragment_head(const std::byte* bytes) {
  FragmentHead fragment;
  fragment.immediate = read_le<uint32_t>(bytes + kCreditsHeadBytes);
  fragment.offset = read_le<uint64_t>(bytes + kCreditsHeadBytes + sizeof(fragment.immediate));
  return fragment;
}

size_t encode_head(std::byte* out, uint16_t credits, const MessageHeader& header,
                   MessageHeader& before) {
  out[0] = static_cast<std::byte>(HeadType::kMessage);
  write_le(out + 1, credits);
  std::byte* next = out + kFixedHeadBytes;
  uint32_t mask = 0;
  for (size_t word = 0; word < kHeaderBytes; word += sizeof(uint64_t)) {
    uint64_t difference =
        read_le<uint64_t>(header.data() + word) ^ read_le<uint64_t>(before.data() + word);
    while (difference != 0) {
      const size_t at = static_cast<size_t>(std::countr_zero(difference)) / 8;
      mask |= uint32_t{1} << (word + at);
      *next++ = header[word + at];
      difference &= ~(uint64_t{0xff} << (8 * at));
    }
  }
  write_le(out + kMaskAt, mask);
  before = header;
  return static_cast<size_t>(next - out);
}

std::optional<Head> decode_head(const std::byte* bytes, size_t size, MessageHeader& header) {
  if (size < kCreditsHeadBytes) return std::nullopt;
  Head head{.type = static_cast<HeadType>(bytes[0]), .credits = read_le<uint16_t>(bytes + 1)};
  if (head.type == HeadType::kCredits) {
    head.size = kCreditsHeadBytes;
    return size == kCreditsHeadBytes ? std::optional(head) : std::nullopt;
  }
  if (head.type == HeadType::kFragment) {
    head.size = kFragmentHeadBytes;
    return size > kFragmentHeadBytes ? std::optional(head) : std::nullopt;
  }
  if (head.type != HeadType::kMessage || size < kFixedHeadBytes) return std::nullopt;
  uint32_t mask = read_le<uint32_t>(bytes + kMaskAt);
  head.size = kFixedHeadBytes + static_cast<size_t>(std::popcount(mask));
  if (size < head.size) return std::nullopt;
  for (const std::byte* next = bytes + kFixedHeadBytes; mask != 0; mask &= mask - 1) {
    header[static_cast<size_t>(std::countr_zero(mask))] = *next++;
  }
  return head;
}

RemoteKey encode_key(const Key& key) {
  RemoteKey out;
  out.words[0] = key.address;
  out.words[1] = key.rkey | static_cast<uint64_t>(key.immediate) << 32;
  out.words[2] = key.length | static_cast<uint64_t>(key.kind) << 56;
  return out;
}

std::optional<Key> decode_key(const RemoteKey& key) {
  const uint64_t kind = key.words[2] >> 56;
  const uint64_t length = key.words[2] & ((uint64_t{1} << 56) - 1);
  if (kind < static_cast<uint64_t>(KeyKind::kWriteTarget) ||
      kind > static_cast<uint64_t>(KeyKind::kCopiedTarget) || length >= kMaxKeyBytes) {
    return std::nullopt;
  }
  return Key{.address = key.words[0],
             .length = length,
             .rkey = static_cast<uint32_t>(key.words[1]),
             .immediate = static_cast<uint32_t>(key.words[1] >> 32),
             .kind = static_cast<KeyKind>(kind)};
}

}  // namespace hetcomm::rdma
