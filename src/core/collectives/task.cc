#include "src/core/collectives/task.h"

#include <cstddef>

#include <fmt/core.h>

#include "src/core/collectives/estimate.h"

namespace hetcomm::collectives {

using reduce::Operator;
using reduce::Type;

Code Task::set_up(int32_t rank, int32_t size, const Arguments& arguments, std::string* text) {
  problem_.kind = arguments.kind;
  if (Code code = set_up_list(rank, size, arguments, text); code != Code::kOk) return code;
  if (Code code = set_up_options(arguments, text); code != Code::kOk) return code;
  return set_up_buffers(arguments, text);
}

Code Task::set_up_list(int32_t rank, int32_t size, const Arguments& arguments, std::string* text) {
  problem_.ranks = static_cast<uint32_t>(size);
  problem_.rank = static_cast<uint32_t>(rank);
  if (arguments.options != nullptr && arguments.options->ranks != nullptr) {
    const size_t count = arguments.options->rank_count;
    if (count == 0 || count > problem_.ranks) {
      *text = fmt::format("the list has {} ranks; it takes 1 to {}", count, size);
      return Code::kInvalidArgument;
    }
    list_.assign(arguments.options->ranks, arguments.options->ranks + count);
    std::vector<bool> seen(problem_.ranks);
    size_t own = count;
    for (size_t i = 0; i < count; ++i) {
      const int32_t each = list_[i];
      if (each < 0 || each >= size) {
        *text =
            fmt::format("the list has rank {}; the communicator has ranks 0 to {}", each, size - 1);
        return Code::kOutOfRange;
      }
      if (seen[static_cast<size_t>(each)]) {
        *text = fmt::format("the list has rank {} twice", each);
        return Code::kInvalidArgument;
      }
      seen[static_cast<size_t>(each)] = true;
      if (each == rank) own = i;
    }
    if (own == count) {
      *text = fmt::format("the list does not have this rank, {}", rank);
      return Code::kInvalidArgument;
    }
    problem_.ranks = static_cast<uint32_t>(count);
    problem_.rank = static_cast<uint32_t>(own);
    // A list of all ranks in order is equivalent to no list.
    bool in_order = count == static_cast<size_t>(size);
    for (size_t i = 0; i < count && in_order; ++i) in_order = list_[i] == static_cast<int32_t>(i);
    if (in_order) list_.clear();
  }
  if (arguments.root < 0 || static_cast<uint32_t>(arguments.root) >= problem_.ranks) {
    *text = fmt::format("root is {}; ranks 0 to {} take part", arguments.root, problem_.ranks - 1);
    return Code::kOutOfRange;
  }
  problem_.root = static_cast<uint32_t>(arguments.root);
  return Code::kOk;
}

Code Task::set_up_options(const Arguments& arguments, std::string* text) {
  const Kind kind = problem_.kind;
  if (arguments.datatype < 0 || arguments.datatype > HETCOMM_COMPLEX128) {
    *text = fmt::format("datatype {} is not one of hetcomm_datatype_t", arguments.datatype);
    return Code::kInvalidArgument;
  }
  call_.kind = kind;
  if (arguments.splits) call_.variant = Variant::kSplit;
  call_.root = problem_.root;
  call_.datatype = arguments.datatype;
  problem_.element_bytes = reduce::size_of(static_cast<Type>(arguments.datatype));
  if (reduces(kind)) {
    if (arguments.reduction < 0 || arguments.reduction > HETCOMM_REDUCE_PREMUL_SUM) {
      *text = fmt::format("reduction {} is not one of hetcomm_reduction_t", arguments.reduction);
      return Code::kInvalidArgument;
    }
    if (!reduce::is_defined(static_cast<Type>(arguments.datatype),
                            static_cast<Operator>(arguments.reduction))) {
      *text = "the reduction is not defined for this datatype";
      return Code::kUnsupported;
    }
    call_.reduction = arguments.reduction;
    problem_.rounds = reduce::rounds(static_cast<Type>(arguments.datatype),
                                     static_cast<Operator>(arguments.reduction));
    problem_.wide_bytes = sizeof(float);
  }
  const hetcomm_collective_options_t* options = arguments.options;
  if (options == nullptr) return Code::kOk;
  constexpr uint32_t kBarrierFlags = HETCOMM_COLLECTIVE_MONITORED | HETCOMM_COLLECTIVE_WAIT_ALL;
  const uint32_t known = kind == Kind::kBarrier ? kBarrierFlags
                         : kind == Kind::kScan  ? HETCOMM_COLLECTIVE_EXCLUSIVE
                                                : 0;
  if ((options->flags & ~known) != 0) {
    *text = fmt::format("flags has bits that are not defined for a {}", name_of(kind));
    return Code::kInvalidArgument;
  }
  problem_.exclusive = (options->flags & HETCOMM_COLLECTIVE_EXCLUSIVE) != 0;
  problem_.monitored = (options->flags & HETCOMM_COLLECTIVE_MONITORED) != 0;
  wait_all_ = (options->flags & HETCOMM_COLLECTIVE_WAIT_ALL) != 0;
  if (wait_all_ && !problem_.monitored) {
    *text = "HETCOMM_COLLECTIVE_WAIT_ALL needs HETCOMM_COLLECTIVE_MONITORED";
    return Code::kInvalidArgument;
  }
  if (problem_.exclusive) call_.variant = Variant::kExclusive;
  call_.monitored = problem_.monitored ? 1 : 0;
  if (call_.reduction == HETCOMM_REDUCE_PREMUL_SUM) call_.factor = options->factor;
  if (options->algorithm != nullptr) {
    std::string names;
    if (!find_algorithm(kind, options->algorithm, &problem_.algorithm, &names)) {
      *text = fmt::format("{} has no algorithm '{}'; there are {}", name_of(kind),
                          options->algorithm, names);
      return Code::kUnsupported;
    }
    call_.algorithm = problem_.algorithm;
  }
  return Code::kOk;
}

Code Task::set_up_buffers(const Arguments& arguments, std::string* text) {
  const Kind kind = problem_.kind;
  const bool at_root = problem_.rank == problem_.root;
  const bool send_many = sends_many(kind);
  const bool receive_many = receives_many(kind);
  const bool sends = !(kind == Kind::kScatter || kind == Kind::kScatterv) || at_root;
  const bool receives =
      !(kind == Kind::kReduce || kind == Kind::kGather || kind == Kind::kGatherv) || at_root;
  if (sends) {
    const Code code = send_.fill(arguments.sends, send_many ? problem_.ranks : arguments.send_count,
                                 send_many, text);
    if (code != Code::kOk) return code;
  }
  if (receives) {
    const Code code =
        receive_.fill(arguments.receives, receive_many ? problem_.ranks : arguments.receive_count,
                      receive_many, text);
    if (code != Code::kOk) return code;
  }
  for (const Side* side : {&send_, &receive_}) {
    if (side->is_multiple_of(problem_.element_bytes)) continue;
    *text = fmt::format("a buffer's length is no multiple of the {} bytes of an element",
                        problem_.element_bytes);
    return Code::kInvalidArgument;
  }
  return check_sizes(text);
}

// Checks that the lengths match, and sets the lengths of the problem and of the call.
Code Task::check_sizes(std::string* text) {
  const uint64_t n = problem_.ranks;
  const bool at_root = problem_.rank == problem_.root;
  const auto refuse = [&](uint64_t sent, uint64_t received) {
    *text = fmt::format("{}: {} bytes to send and {} to receive do not fit together",
                        name_of(problem_.kind), sent, received);
    return Code::kInvalidArgument;
  };
  const uint64_t own_sent = send_.length_of(problem_.rank);
  const uint64_t own_received = receive_.length_of(problem_.rank);
  switch (problem_.kind) {
    case Kind::kBarrier:
      break;
    case Kind::kBroadcast:
      problem_.bytes = receive_.length();
      break;
    case Kind::kReduce:
      if (at_root && send_.length() != receive_.length())
        return refuse(send_.length(), receive_.length());
      problem_.bytes = send_.length();
      break;
    case Kind::kAllreduce:
    case Kind::kScan:
      if (send_.length() != receive_.length()) return refuse(send_.length(), receive_.length());
      problem_.bytes = send_.length();
      break;
    case Kind::kAllgather:
    case Kind::kGather:
      if ((at_root || problem_.kind == Kind::kAllgather) &&
          (receive_.length() % n != 0 || receive_.length() / n != send_.length())) {
        return refuse(send_.length(), receive_.length());
      }
      problem_.bytes = send_.length();
      break;
    case Kind::kReduceScatter:
    case Kind::kScatter:
      if ((at_root || problem_.kind == Kind::kReduceScatter) &&
          (send_.length() % n != 0 || send_.length() / n != receive_.length())) {
        return refuse(send_.length(), receive_.length());
      }
      problem_.bytes = receive_.length();
      break;
    case Kind::kAlltoall:
      if (send_.length() != receive_.length() ||
          send_.length() % (n * problem_.element_bytes) != 0) {
        return refuse(send_.length(), receive_.length());
      }
      problem_.bytes = send_.length() / n;
      break;
    case Kind::kAllgatherv:
    case Kind::kAlltoallv:
      if (own_sent != own_received) return refuse(own_sent, own_received);
      problem_.bytes = own_sent;
      break;
    case Kind::kGatherv:
      if (at_root && own_sent != own_received) return refuse(own_sent, own_received);
      problem_.bytes = own_sent;
      break;
    case Kind::kReduceScatterv:
      if (own_sent != own_received) return refuse(own_sent, own_received);
      problem_.bytes = own_received;
      break;
    case Kind::kScatterv:
      if (at_root && own_sent != own_received) return refuse(own_sent, own_received);
      problem_.bytes = own_received;
      break;
  }
  send_.set_stride(problem_.bytes);
  receive_.set_stride(problem_.bytes);
  problem_.send_blocks = send_.lengths();
  problem_.receive_blocks = receive_.lengths();
  switch (problem_.kind) {
    case Kind::kAlltoallv:
    case Kind::kGatherv:
    case Kind::kScatterv:
      break;
    case Kind::kAllgatherv:
      call_.blocks = hash_blocks(receive_.lengths());
      break;
    case Kind::kReduceScatterv:
      call_.blocks = hash_blocks(send_.lengths());
      break;
    default:
      call_.bytes = problem_.bytes;
  }
  return Code::kOk;
}

void Task::reset() {
  problem_ = {};
  call_ = {};
  list_.clear();
  wait_all_ = false;
  sequence_ = history_ = 0;
  send_.reset();
  receive_.reset();
}

reduce::Reduction Task::reduction() const {
  return {.type = type(),
          .op = static_cast<Operator>(call_.reduction),
          .ranks = problem_.ranks,
          .factor = call_.factor};
}

std::byte* Task::room_in_result() const {
  if (send_.is_buffer_of(receive_)) return receive_.address(0);
  if (!send_.is_near(receive_)) return nullptr;
  switch (problem_.kind) {
    case Kind::kAllreduce:
    case Kind::kReduce:
      return receive_.address(0);
    case Kind::kAllgather:
    case Kind::kAllgatherv:
    case Kind::kGather:
    case Kind::kGatherv:
      return receive_.address(problem_.rank);
    default:
      return nullptr;
  }
}

void Task::choose_algorithm(const RankPlacement& placement) {
  problem_.placement = &placement;
  problem_.algorithm = choose(problem_);
}

}  // namespace hetcomm::collectives
