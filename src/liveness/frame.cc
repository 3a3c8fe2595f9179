#include "src/liveness/frame.h"

#include <algorithm>
#include <utility>

namespace hetcomm::liveness {
namespace {

size_t max_text(FrameType type, uint8_t code) {
  const bool is_profile =
      type == FrameType::kLetter && code == static_cast<uint8_t>(LetterType::kProfile);
  return is_profile ? kMaxProfileText : kMaxFrameText;
}

}  // namespace

void encode(const Frame& frame, std::vector<std::byte>& out) {
  const size_t length = std::min(frame.text.size(), max_text(frame.type, frame.code));
  // Heartbeats are encoded all the time, so |out| keeps its memory. Memory is reserved first, so
  // |out| is unchanged if that fails.
  const size_t needed = out.size() + kFrameHeaderBytes + length;
  if (needed > out.capacity()) out.reserve(std::max(needed, 2 * out.capacity()));
  ByteWriter writer(std::move(out));
  writer.write(static_cast<uint8_t>(frame.type));
  writer.write(frame.code);
  writer.write(static_cast<uint16_t>(length));
  writer.write(frame.subject);
  writer.write(frame.number);
  writer.write(frame.value);
  writer.write_raw(std::as_bytes(std::span(frame.text)).first(length));
  out = writer.take();
}

Decoded decode(ConstByteSpan bytes, int size, Frame* frame, size_t* used) {
  if (bytes.size() < kFrameHeaderBytes) return Decoded::kMore;
  ByteReader reader(bytes);
  const auto type = reader.read<uint8_t>();
  frame->code = reader.read<uint8_t>();
  const auto length = reader.read<uint16_t>();
  frame->subject = reader.read<int32_t>();
  frame->number = reader.read<uint32_t>();
  frame->value = reader.read<uint64_t>();
  if (type < 1 || type > static_cast<uint8_t>(kLastFrameType) || frame->subject < 0 ||
      frame->subject >= size) {
    return Decoded::kGarbage;
  }
  frame->type = static_cast<FrameType>(type);
  if (length > max_text(frame->type, frame->code)) return Decoded::kGarbage;
  if (reader.left() < length) return Decoded::kMore;
  const ConstByteSpan text = reader.read_raw(length);
  frame->text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  *used = kFrameHeaderBytes + length;
  return Decoded::kFrame;
}

}  // namespace hetcomm::liveness
