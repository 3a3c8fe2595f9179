#include "src/core/job/paths/path_inquiry.h"

#include <algorithm>

namespace hetcomm {
namespace {

void write(ByteWriter& writer, const StreamId& stream) {
  writer.write_raw(stream.connection);
  writer.write(stream.index);
}

StreamId read_stream(ByteReader& reader) {
  StreamId stream;
  const ConstByteSpan connection = reader.read_raw(stream.connection.size());
  std::copy(connection.begin(), connection.end(), stream.connection.begin());
  stream.index = reader.read<uint8_t>();
  return stream;
}

}  // namespace

std::vector<std::byte> encode_question(const StreamId& stream) {
  ByteWriter writer;
  write(writer, stream);
  return writer.take();
}

bool decode_answer(ConstByteSpan bytes, PathAnswer* answer) {
  ByteReader reader(bytes);
  answer->stream = read_stream(reader);
  answer->receipt.received_bytes = reader.read<uint64_t>();
  answer->receipt.full = reader.read<uint8_t>() != 0;
  return reader.finished();
}

void PathWitness::add(const ReceiptSource& source) {
  const std::lock_guard lock(mutex_);
  sources_.push_back(&source);
}

void PathWitness::close() {
  const std::lock_guard lock(mutex_);
  sources_.clear();
}

std::string PathWitness::testify(int from, ConstByteSpan question) {
  ByteReader reader(question);
  const StreamId stream = read_stream(reader);
  if (!reader.finished()) return {};
  PathReceipt receipt;
  const std::lock_guard lock(mutex_);
  const bool known = std::any_of(
      sources_.begin(), sources_.end(),
      [&](const ReceiptSource* source) { return source->receipt(from, stream, &receipt); });
  if (!known) return {};
  ByteWriter writer;
  write(writer, stream);
  writer.write(receipt.received_bytes);
  writer.write(static_cast<uint8_t>(receipt.full));
  const std::vector<std::byte>& bytes = writer.bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace hetcomm
