// Control connections carry frames: a fixed header and a short text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/base/bytes.h"

namespace hetcomm::liveness {

// A rank's fate. A larger value overrides a smaller one: kAlive can become kDead or kLeft, and
// kDead can become kLeft.
enum class Fate : uint8_t { kAlive = 0, kDead = 1, kLeft = 2 };

enum class FrameType : uint8_t {
  kBeat = 1,     // the sender's control thread is running
  kFate,         // |subject| of incarnation |value| is dead or has left (|code| is a Fate)
  kAborted,      // |subject| has aborted communicator |number|
  kFailed,       // collective operations of communicator |number| failed on |subject| with |code|
  kSuspect,      // asks who has heard from |subject|; |number| counts the questions about it
  kVouch,        // answers kSuspect: |subject| gave a sign of life |value| nanoseconds ago; |text|:
                 // where it listens, if the sender knows more addresses than the digest has
  kLetter,       // a message for the receiver alone; |number| counts, |code| is a LetterType
  kLetterTaken,  // the sender has received letters up to |number|
  kGoodbyeTaken,  // acknowledges the receiver's goodbye
  kRelease,       // the sender no longer needs the connection; |code| 1: it agrees to end it
  kHere,          // |text|: where the sender listens; sent only if not all ranks know that
};
inline constexpr auto kLastFrameType = FrameType::kHere;

enum class LetterType : uint8_t {
  kKnock = 1,  // the sender has something to send and asks the receiver, the lower rank, to connect
  kRefused,    // from the lower rank: it cannot connect to the receiver. From the higher rank: it
               // drops the receiver's connections, since it lacks the receiver's profile.
  kGivenUp,    // the sender will no longer exchange messages with the receiver
  kCall,       // the sender has called a collective operation
  kQuestion,   // asks how much has arrived on the data connection that |text| names
  kAnswer,     // the answer, with the question's |value|; not sent again, since it becomes stale
  kProfile,    // |text| is the sender's profile; |value| 1 requests the receiver's
};
inline constexpr auto kLastLetterType = LetterType::kProfile;

// The number of a letter that is sent only once and not kept.
inline constexpr uint32_t kUncounted = 1U << 31U;

struct Frame {
  FrameType type = FrameType::kBeat;
  uint8_t code = 0;
  int32_t subject = 0;
  uint32_t number = 0;
  uint64_t value = 0;
  std::string text{};
};

inline constexpr size_t kFrameHeaderBytes = 20;
inline constexpr size_t kMaxFrameText = 400;
inline constexpr size_t kMaxProfileText = 16 * 1024;  // limit for the text of a kProfile letter

// Appends |frame| to |out|. Cuts the text at the limit of the frame's type.
void encode(const Frame& frame, std::vector<std::byte>& out);

// kMore: a part of the frame has not arrived yet. kGarbage: the bytes are not a valid frame.
enum class Decoded : uint8_t { kFrame, kMore, kGarbage };
// Decodes the frame at the front of |bytes| and sets |*used| to its length. |size| is the number of
// ranks.
Decoded decode(ConstByteSpan bytes, int size, Frame* frame, size_t* used);

}  // namespace hetcomm::liveness
