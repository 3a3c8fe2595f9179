#include "src/liveness/control_plane.h"

#include "src/liveness/plane.h"
#include "src/system/clock.h"

namespace hetcomm::liveness {
namespace {

std::string cut(std::string_view text) { return std::string(text.substr(0, kMaxFrameText)); }

std::string as_text(ConstByteSpan bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

Result<std::unique_ptr<ControlPlane>> ControlPlane::create(ControlThread& thread, Log& log,
                                                           const Config& config, Setup setup) {
  auto mailbox = std::make_shared<Mailbox>(setup.doorbell);
  std::unique_ptr<ControlPlane> made(new ControlPlane(thread, std::move(mailbox)));
  Status status(Code::kOutOfMemory);
  thread.call([&] {
    Result<std::unique_ptr<Plane>> plane =
        Plane::create(thread, log, config, setup, made->mailbox_, made->profiles_);
    if (!plane.ok()) {
      status = plane.status();
      return;
    }
    made->addresses_ = (*plane)->addresses();
    Plane* const added = plane->get();
    thread.add(std::move(plane).value());
    made->plane_ = added;
    status = Status();
  });
  if (!status.ok()) return status;
  return made;
}

ControlPlane::~ControlPlane() {
  if (plane_ == nullptr) return;
  thread_.post([plane = plane_] { plane->leave(); });
}

Status ControlPlane::start(Membership membership) {
  Status status(Code::kOutOfMemory);
  thread_.call([&] { status = plane_->start(std::move(membership)); });
  return status;
}

ControlPlane::Missing ControlPlane::missing_neighbours() {
  Missing missing;
  thread_.call([&] {
    missing.ranks = plane_->judge().missing();
    if (!missing.ranks.empty()) missing.failure = plane_->judge().last_failure(missing.ranks[0]);
    missing.last_rejection = plane_->last_rejection();
  });
  return missing;
}

template <typename Use>
void ControlPlane::with_judge(Use&& use) {
  thread_.post([plane = plane_, use = std::forward<Use>(use)] { use(plane->judge(), now_ns()); });
}

void ControlPlane::knock(int rank, uint64_t lost) {
  with_judge([rank, lost](Judge& judge, uint64_t now) {
    judge.post(rank, LetterType::kKnock, lost, {}, now);
  });
}

void ControlPlane::forget_knock(int rank) {
  with_judge([rank](Judge& judge, uint64_t /*now*/) { judge.forget_knock(rank); });
}

void ControlPlane::refuse(int rank, std::string_view why) {
  with_judge([rank, text = cut(why)](Judge& judge, uint64_t now) {
    judge.post(rank, LetterType::kRefused, 0, text, now);
  });
}

void ControlPlane::give_up(int rank, const Status& why) {
  const auto code = static_cast<uint64_t>(-static_cast<int64_t>(why.code()));
  with_judge([rank, code, text = cut(why.text())](Judge& judge, uint64_t now) {
    judge.post(rank, LetterType::kGivenUp, code, text, now);
  });
}

void ControlPlane::tell_call(int rank, uint32_t communicator, ConstByteSpan note) {
  with_judge([rank, communicator, text = as_text(note)](Judge& judge, uint64_t now) {
    judge.post(rank, LetterType::kCall, communicator, text, now);
  });
}

void ControlPlane::ask(int rank, ConstByteSpan question, uint64_t value) {
  with_judge([rank, text = as_text(question), value](Judge& judge, uint64_t now) {
    judge.post(rank, LetterType::kQuestion, value, text, now);
  });
}

void ControlPlane::ask_profile(int rank) {
  thread_.post([plane = plane_, rank] { plane->ask_profile(rank, now_ns()); });
}

void ControlPlane::learn_addresses(int rank, std::vector<Address> addresses) {
  thread_.post([plane = plane_, rank, addresses = std::move(addresses)]() mutable {
    plane->learn(rank, std::move(addresses));
  });
}

void ControlPlane::publish_abort(uint32_t communicator, std::string_view reason) {
  with_judge([communicator, text = cut(reason)](Judge& judge, uint64_t /*now*/) {
    judge.publish({.type = FrameType::kAborted, .number = communicator, .text = text});
  });
}

void ControlPlane::publish_collectives_failed(uint32_t communicator, const Status& why) {
  const auto code = static_cast<uint8_t>(-static_cast<int32_t>(why.code()));
  with_judge([communicator, code, text = cut(why.text())](Judge& judge, uint64_t /*now*/) {
    judge.publish({.type = FrameType::kFailed, .code = code, .number = communicator, .text = text});
  });
}

void ControlPlane::note_data(int rank) {
  with_judge([rank](Judge& judge, uint64_t now) { judge.on_data(rank, now); });
}

void ControlPlane::inquire(int rank) {
  with_judge([rank](Judge& judge, uint64_t now) { judge.inquire(rank, now); });
}

}  // namespace hetcomm::liveness
