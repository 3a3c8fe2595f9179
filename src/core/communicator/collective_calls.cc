#include "src/core/communicator/collective_calls.h"

#include <memory>
#include <new>
#include <utility>

#include <fmt/core.h>

#include "src/base/text.h"
#include "src/core/collectives/collective.h"
#include "src/core/collectives/collectives.h"
#include "src/system/clock.h"

namespace hetcomm {

using collectives::Arguments;
using collectives::Collective;

namespace {

// Fills |operation| without buffers, to represent work that consists of other operations.
void fill_composite(const Communicator& communicator, Operation& operation) {
  communicator.poster().filler().fill_common(OperationKind::kCollective, communicator.rank(), 0, 0,
                                             operation);
  operation.buffers.extent = {};
  operation.length = 0;
  operation.clear_pieces();
}

// Fills |operation| to represent |call|.
void fill_call(const Communicator& communicator, const Arguments& arguments,
               std::unique_ptr<Collective> call, Operation& operation) {
  fill_composite(communicator, operation);
  if (arguments.options != nullptr && arguments.options->timeout_ns != 0) {
    operation.timeout_ns = arguments.options->timeout_ns;
    operation.run.deadline_ns = deadline_after(now_ns(), operation.timeout_ns);
  }
  call->attach(operation);
  if (arguments.options != nullptr) {
    OperationFiller::name_stream(stream_of(arguments.options->stream), operation);
  }
  operation.composite = call.release();
}

// A refusal, made by refuse_collective(), that takes effect after earlier calls that wait for
// users' streams.
class Refusal final : public CompositeOperation {
 public:
  Refusal(collectives::Collectives& collectives, std::string_view why)
      : collectives_(collectives), why_(why) {}
  const void* order() const override HETCOMM_UNDER_BATON { return &collectives_; }
  void lined_up() override HETCOMM_UNDER_BATON {}
  // The operation ends immediately, and no caller sees the status.
  Status begin(Operation& /*operation*/) override HETCOMM_UNDER_BATON {
    collectives_.refuse(why_);
    return Code::kCancelled;
  }
  void withdraw(Code /*code*/, const std::string& /*text*/) override HETCOMM_UNDER_BATON {}
  void end(Code /*code*/, const std::string& /*text*/) override HETCOMM_UNDER_BATON {}
  bool fails_without(int /*rank*/, bool /*has_left*/) const override HETCOMM_UNDER_BATON {
    return false;
  }
  Status known_end() const override HETCOMM_UNDER_BATON { return {}; }
  bool is_collective_call() const override HETCOMM_UNDER_BATON { return false; }
  std::vector<int> awaited() const override HETCOMM_UNDER_BATON { return {}; }
  std::string remark() const override HETCOMM_UNDER_BATON { return {}; }
  Code code_at_deadline() const override HETCOMM_UNDER_BATON { return Code::kTimedOut; }
  std::string describe() const override HETCOMM_UNDER_BATON { return "refusal: " + why_; }

 private:
  collectives::Collectives& collectives_;
  const std::string why_;
};

}  // namespace

Code post_collective(Communicator& communicator, const Arguments& arguments, Operation** out,
                     std::string* text) {
  Engine& engine = communicator.engine();
  Poster& poster = communicator.poster();
  collectives::Collectives& teams = communicator.collectives();
  const bool in_group = arguments.options != nullptr && arguments.options->group != nullptr;
  std::unique_ptr<Departure> departure;
  if (!in_group && arguments.options != nullptr) {
    const Code code = Poster::book(stream_of(arguments.options->stream), &departure, text);
    if (code != Code::kOk) return code;
  }
  // An operation that waits for a user's stream is always queued.
  if (departure == nullptr && engine.try_lock_as_user()) [[likely]] {
    const Engine::Held held(engine);
    std::unique_ptr<Collective> call = teams.take();
    if (const Code code = call->set_up(teams, arguments, text); code != Code::kOk) {
      teams.recycle(std::move(call));
      return code;
    }
    Operation* operation = engine.pool().allocate();
    if (operation == nullptr) return Code::kOutOfMemory;
    fill_call(communicator, arguments, std::move(call), *operation);
    if (in_group) {
      poster.collect(*operation);
    } else {
      operation->set_state(OperationState::kPending);
      poster.start_now(*operation);
    }
    *out = operation;
  } else {
    auto call = std::make_unique<Collective>();
    if (const Code code = call->set_up(teams, arguments, text); code != Code::kOk) return code;
    Operation* operation = poster.allocate();
    if (operation == nullptr) return Code::kOutOfMemory;
    fill_call(communicator, arguments, std::move(call), *operation);
    if (departure != nullptr) book_departure(*operation, std::move(departure));
    if (in_group) {
      const Engine::Baton baton(engine);
      poster.collect(*operation);
    } else {
      operation->set_state(OperationState::kPending);
      engine.baton_lock().submit(*operation);
    }
    *out = operation;
  }
  if (!in_group && engine.threaded()) engine.note_pending();
  return Code::kOk;
}

Status run_collective(Communicator& communicator, const Arguments& arguments) {
  Engine& engine = communicator.engine();
  Operation* operation = nullptr;
  std::string text;
  Code code = Code::kOutOfMemory;
  try {
    code = post_collective(communicator, arguments, &operation, &text);
  } catch (const std::bad_alloc&) {
  }
  if (code != Code::kOk) {
    if (text.empty()) text = code_text(code);
    const Engine::Baton baton(engine);
    communicator.collectives().fail(
        code, text_or_none([&] { return fmt::format("rank {}: {}", communicator.rank(), text); }));
    return Status(code, std::move(text));
  }
  // The operation has its own deadline. This wait lasts until it ends, because its memory may be
  // accessed until then.
  engine.wait(kForever, [operation] { return operation->state() == OperationState::kComplete; });
  Status status;
  if (operation->outcome.code != Code::kOk) {
    status = status_or_code(operation->outcome.code,
                            [&] { return std::string(operation->outcome.why()); });
  }
  engine.pool().recycle(operation);
  return status;
}

Status barrier(Communicator& communicator, uint64_t timeout_ns) {
  hetcomm_collective_options_t options{};
  options.struct_size = sizeof(options);
  options.timeout_ns = timeout_ns;
  return run_collective(communicator, {.kind = collectives::Kind::kBarrier, .options = &options})
      .annotate("barrier");
}

void refuse_collective(Communicator& communicator, std::string_view why) {
  Engine& engine = communicator.engine();
  const Engine::Baton baton(engine);
  engine.drain_queued();
  collectives::Collectives& teams = communicator.collectives();
  if (!communicator.job().departures().holds_back(&teams)) {
    teams.refuse(why);
    return;
  }
  auto refusal = std::make_unique<Refusal>(teams, why);
  Operation* const operation = engine.pool().allocate();
  if (operation == nullptr) throw std::bad_alloc();
  fill_composite(communicator, *operation);
  operation->detached = true;
  operation->composite = refusal.release();
  operation->set_state(OperationState::kPending);
  engine.operation_started();
  communicator.poster().start(*operation);
}

}  // namespace hetcomm
