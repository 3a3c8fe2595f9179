// Decodes the data that rdma receives from peers: contacts, parameters and answers before a
// connection, message heads, each of which refers to the previous one, and keys. Properties: no
// read past the end; decoded values are within their limits and encode to the same bytes; a refused
// head is no longer than the available bytes; both ends of a stream of heads keep the same header.
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "transports/rdma/wire.h"

namespace hetcomm::rdma {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

bool same(ConstByteSpan a, ConstByteSpan b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

void read_contact(ConstByteSpan input) {
  Result<Contact> contact = decode_contact(input);
  if (!contact.ok()) return;
  require(!contact->host.addresses.empty() &&
          contact->host.addresses.size() <= kMaxListeningAddresses);
  require(!contact->gids.empty() && contact->gids.size() <= kMaxGids);
  require(same(encode_contact(contact.value()), input));
}

void read_parameters(ConstByteSpan input) {
  const std::optional<Parameters> parameters = decode_parameters(input);
  if (!parameters) return;
  require(input.size() == kParametersBytes);
  require(parameters->credits >= 8 && parameters->slot_bytes >= 1024);
  require(same(encode_parameters(*parameters), input));
}

void read_answer(ConstByteSpan input) {
  AnswerBytes bytes{};
  std::copy_n(input.begin(), std::min(input.size(), bytes.size()), bytes.begin());
  const Result<Answer> answer = decode_answer(bytes);
  if (!answer.ok()) {
    require(!answer.status().text().empty());
    return;
  }
  const AnswerBytes again = encode_answer(answer.value());
  const size_t used = 2 + std::to_integer<size_t>(again[1]);
  require(same(ConstByteSpan(again).first(used), ConstByteSpan(bytes).first(used)));
}

// Any text, even an empty one, is returned as a refusal.
void read_refusal(ConstByteSpan input) {
  const std::string_view why(reinterpret_cast<const char*>(input.data()), input.size());
  require(decode_answer(encode_refusal(why)).status().code() == Code::kPeerLost);
  require(!decode_answer(encode_refusal({})).ok());
}

// Splits the input into messages. The first byte of each gives its length.
void read_heads(ConstByteSpan input) {
  MessageHeader header{};
  while (!input.empty()) {
    const size_t size = std::min(std::to_integer<size_t>(input[0]) % 64, input.size() - 1);
    // Each message has its own memory, so that a read past its end is detected.
    const std::vector<std::byte> message(input.begin() + 1,
                                         input.begin() + 1 + static_cast<ptrdiff_t>(size));
    input = input.subspan(1 + size);
    const MessageHeader before = header;
    const std::optional<Head> head = decode_head(message.data(), message.size(), header);
    if (!head) {
      require(header == before);
      continue;
    }
    require(head->size <= message.size() && head->size <= kMaxHeadBytes);
    if (head->type == HeadType::kFragment) {
      require(head->size < message.size() && header == before);
      std::array<std::byte, kFragmentHeadBytes> same;
      encode_fragment_head(same.data(), head->credits, decode_fragment_head(message.data()));
      require(std::equal(same.begin(), same.end(), message.begin()));
      continue;
    }
    if (head->type == HeadType::kCredits) {
      require(head->size == message.size() && header == before);
      continue;
    }
    // The shortest head with the same meaning decodes to the same values.
    std::array<std::byte, kMaxHeadBytes> bytes;
    MessageHeader sent = before;
    const size_t shortest = encode_head(bytes.data(), head->credits, header, sent);
    require(shortest <= head->size && sent == header);
    MessageHeader received = before;
    const std::optional<Head> again = decode_head(bytes.data(), shortest, received);
    require(again && again->size == shortest && again->credits == head->credits);
    require(received == header);
  }
}

void read_keys(ConstByteSpan input) {
  RemoteKey key;
  const auto bytes = std::as_writable_bytes(std::span(key.words));
  for (; input.size() >= bytes.size(); input = input.subspan(bytes.size())) {
    std::copy_n(input.begin(), bytes.size(), bytes.begin());
    // Kinds are few, so most keys get a valid one.
    if (std::to_integer<unsigned>(input[0]) % 4 != 0) bytes[23] &= std::byte{7};
    if (std::to_integer<unsigned>(input[1]) % 4 != 0) bytes[22] = std::byte{0};
    const std::optional<Key> decoded = decode_key(key);
    if (!decoded) continue;
    require(decoded->length < kMaxKeyBytes);
    require(slot_of(decoded->immediate) < kMaxExposures);
    require(make_immediate(slot_of(decoded->immediate), generation_of(decoded->immediate)) ==
            decoded->immediate);
    require(encode_key(*decoded) == key);
  }
}

// Random bytes seldom have a valid beginning. These inputs do.
std::vector<std::byte> behind(std::initializer_list<unsigned> first, ConstByteSpan input) {
  std::vector<std::byte> bytes;
  for (const unsigned byte : first) bytes.push_back(static_cast<std::byte>(byte));
  bytes.insert(bytes.end(), input.begin(), input.end());
  return bytes;
}

void read_changed(ConstByteSpan input) {
  Parameters parameters{.queue_pair = 1, .credits = 32, .slot_bytes = 8256};
  Contact contact;
  contact.host.addresses.push_back(Address::parse_numeric("192.0.2.1", 4000).value());
  contact.gids.push_back({});
  contact.nic = "nic0:1";
  std::vector<std::byte> described = encode_contact(contact);
  std::vector<std::byte> told = encode_parameters(parameters);
  AnswerBytes answer =
      encode_answer({parameters, CmInvitation{contact.host.addresses.front(), CmToken{}}});
  for (size_t i = 0; i + 1 < input.size(); i += 2) {
    const auto at = std::to_integer<size_t>(input[i]);
    described[at % described.size()] ^= input[i + 1];
    told[at % told.size()] ^= input[i + 1];
    answer[at % answer.size()] ^= input[i + 1];
    read_contact(described);
    read_parameters(told);
    read_answer(answer);
  }
}

}  // namespace
}  // namespace hetcomm::rdma

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hetcomm;
  const auto input = std::as_bytes(std::span(data, size));
  rdma::read_contact(input);
  rdma::read_contact(rdma::behind({2}, input));
  rdma::read_parameters(rdma::behind({2}, input));
  rdma::read_answer(input);
  rdma::read_answer(rdma::behind({1, 52, 2}, input));
  rdma::read_refusal(input);
  rdma::read_heads(input);
  rdma::read_keys(input);
  rdma::read_changed(input);
  return 0;
}
