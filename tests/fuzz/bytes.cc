// The reader of set-up data, and addresses that pass through it. Properties: no read past the end,
// a failure is permanent, lengths beyond the limit fail, and decoded values encode to the same
// bytes.
#include "src/base/bytes.h"

#include <cstdlib>

#include "src/net/address.h"

namespace hetcomm {
namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void read_script(ConstByteSpan input) {
  ByteReader reader(input);
  bool failed = false;
  for (size_t turns = 0; turns <= input.size() + 4; ++turns) {
    const size_t left = reader.left();
    const auto choice = reader.read<uint8_t>();
    const size_t limit = choice / 8;
    if (choice % 8 == 0) reader.read<uint64_t>();
    if (choice % 8 == 1) reader.read<int32_t>();
    if (choice % 8 == 2) require(reader.read_bytes(limit).size() <= limit);
    if (choice % 8 == 3) require(reader.read_string(limit).size() <= limit);
    if (choice % 8 == 4) require(reader.read_raw(limit).size() <= limit);
    require(reader.left() < left || reader.failed());
    require(!failed || reader.failed());
    failed = reader.failed();
    require(!failed || (reader.left() == 0 && !reader.finished()));
  }
}

void read_addresses(ConstByteSpan input) {
  ByteReader reader(input);
  while (!reader.failed()) {
    const ConstByteSpan before = input.last(reader.left());
    const Result<Address> address = Address::decode(reader);
    if (!address.ok()) return;
    ByteWriter writer;
    address.value().encode(writer);
    const ConstByteSpan used = before.first(before.size() - reader.left());
    require(std::equal(used.begin(), used.end(), writer.bytes().begin(), writer.bytes().end()));
    require(!address.value().to_string().empty());
  }
}

}  // namespace
}  // namespace hetcomm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto input = std::as_bytes(std::span(data, size));
  hetcomm::read_script(input);
  hetcomm::read_addresses(input);
  return 0;
}
