// Implements the point-to-point messages of a process group.
#include <c10/util/Exception.h>

#include "python/src/torch/operations.h"
#include "python/src/torch/tensors.h"

namespace hetcomm::torch_backend {

void Operations::check_root(const char* operation, int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "hetcomm ", operation,
                    ": invalid root rank: ", root);
}

void Operations::check_peer(const char* operation, int peer) const {
  TORCH_CHECK_VALUE(peer >= 0 && peer < size_, "hetcomm ", operation, ": invalid rank: ", peer);
}

Operations::Ref Operations::send(Tensors& tensors, int destination, int tag) {
  const at::Tensor& tensor = single("send", tensors);
  check_peer("send", destination);
  const WorkRef work = poster_.make_work({.type = c10d::OpType::SEND,
                                          .name = "send",
                                          .profiling = "hetcomm:send",
                                          .sequence = 0,
                                          .inputs = tensors,
                                          .results = {}});
  const hetcomm_buffer_t buffer = buffer_of(packed_input(*work, tensor));
  return poster_.start(work, [&](hetcomm_communicator_t* communicator, hetcomm_group_t* group) {
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = poster_.timeout_ns(kNoTimeout);
    options.group = group;
    options.stream = poster_.group()->stream_of_message(*work);
    hetcomm_request_t* request = nullptr;
    check("send", hetcomm_send(communicator, destination, static_cast<uint32_t>(tag), buffer,
                               &options, &request));
    work->add_request(request);
  });
}

Operations::Ref Operations::receive(const char* name, Tensors& tensors, int source, int tag) {
  const at::Tensor& tensor = single(name, tensors);
  const bool any = source == HETCOMM_ANY_SOURCE;
  const WorkRef work =
      poster_.make_work({.type = any ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV,
                         .name = name,
                         .profiling = any ? "hetcomm:recvAnySource" : "hetcomm:recv",
                         .sequence = 0,
                         .inputs = tensors,
                         .results = tensors});
  // A message may be shorter than the tensor. The rest of the tensor stays unchanged.
  const hetcomm_buffer_t buffer = buffer_of(packed_output(*work, tensor, true));
  return poster_.start(work, [&](hetcomm_communicator_t* communicator, hetcomm_group_t* group) {
    hetcomm_operation_options_t options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = poster_.timeout_ns(kNoTimeout);
    options.group = group;
    options.stream = poster_.group()->stream_of_message(*work);
    hetcomm_request_t* request = nullptr;
    check(name, hetcomm_recv(communicator, source, static_cast<uint32_t>(tag), HETCOMM_EXACT_TAG,
                             buffer, &options, &request));
    work->add_request(request);
  });
}

Operations::Ref Operations::recv(Tensors& tensors, int source, int tag) {
  check_peer("recv", source);
  return receive("recv", tensors, source, tag);
}

Operations::Ref Operations::recvAnysource(Tensors& tensors, int tag) {
  return receive("recvAnysource", tensors, HETCOMM_ANY_SOURCE, tag);
}

void Operations::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  monitored_barrier_.run(rank_, size_, options.timeout, wait_all_ranks);
}

}  // namespace hetcomm::torch_backend
