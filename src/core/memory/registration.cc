#include "src/core/memory/registration.h"

#include <algorithm>

#include "src/base/bytes.h"

namespace hetcomm {
namespace {

constexpr uint32_t kMagic = 0x336d6368;  // "hcm3"
constexpr uint8_t kHostAccessible = 1;
constexpr uint8_t kNeedsFlush = 2;

}  // namespace

std::vector<std::byte> ExportedMemory::encode() const {
  ByteWriter writer;
  writer.write(kMagic);
  writer.write_raw(job.job);
  writer.write(job.epoch);
  writer.write_raw(job.instance);
  writer.write(rank);
  writer.write(id);
  writer.write(length);
  writer.write(static_cast<uint8_t>(rights));
  writer.write(static_cast<uint8_t>((host_accessible ? kHostAccessible : 0) |
                                    (needs_flush ? kNeedsFlush : 0)));
  writer.write(static_cast<uint8_t>(keys.size()));
  for (const auto& [transport, key] : keys) {
    writer.write(transport);
    for (const uint64_t word : key.words) writer.write(word);
  }
  return writer.take();
}

Result<ExportedMemory> ExportedMemory::decode(ConstByteSpan bytes) {
  const Status unreadable(
      Code::kInvalidArgument,
      "these bytes were not made by hetcomm_memory_export of this version: pass them on "
      "unchanged, and use one release of hetcomm on all ranks");
  ByteReader reader(bytes);
  if (reader.read<uint32_t>() != kMagic) return unreadable;
  ExportedMemory result;
  const ConstByteSpan job = reader.read_raw(result.job.job.size());
  std::copy(job.begin(), job.end(), result.job.job.begin());
  result.job.epoch = reader.read<uint32_t>();
  const ConstByteSpan instance = reader.read_raw(result.job.instance.size());
  std::copy(instance.begin(), instance.end(), result.job.instance.begin());
  result.rank = reader.read<int32_t>();
  result.id = reader.read<uint64_t>();
  result.length = reader.read<uint64_t>();
  result.rights = reader.read<uint8_t>();
  const auto kind = reader.read<uint8_t>();
  result.host_accessible = (kind & kHostAccessible) != 0;
  result.needs_flush = (kind & kNeedsFlush) != 0;
  const auto count = reader.read<uint8_t>();
  for (size_t i = 0; i < count; ++i) {
    const auto transport = reader.read<uint8_t>();
    RemoteKey key;
    for (uint64_t& word : key.words) word = reader.read<uint64_t>();
    result.keys.emplace_back(transport, key);
  }
  if (!reader.finished()) return unreadable;
  return result;
}

RemoteMemory::RemoteMemory(MemoryCommunicator& communicator, const ExportedMemory& exported,
                           std::vector<RemoteKey> keys)
    : communicator_(communicator),
      rank_(exported.rank),
      id_(exported.id),
      length_(exported.length),
      rights_(exported.rights),
      host_accessible_(exported.host_accessible),
      needs_flush_(exported.needs_flush),
      keys_(std::move(keys)) {
  for (size_t i = 0; i < keys_.size() && i < 64; ++i) {
    if (keys_[i] != RemoteKey{}) transports_ |= uint64_t{1} << i;
  }
  communicator_.add_remote(*this);
}

RemoteMemory::~RemoteMemory() { communicator_.drop_remote(*this); }

}  // namespace hetcomm
