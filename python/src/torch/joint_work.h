// JointWork represents all works of a batch.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "python/src/torch/work.h"

namespace hetcomm::torch_backend {

// Joins works that were started together. A JointWork is done when all of them are done.
class JointWork final : public c10d::Work {
 public:
  JointWork(int rank, std::vector<WorkRef> works)
      : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

  bool isCompleted() override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const WorkRef& work) { return work->isCompleted(); });
  }
  bool isSuccess() const override {
    return std::all_of(works_.begin(), works_.end(),
                       [](const WorkRef& work) { return work->isSuccess(); });
  }
  // Returns the failure of the first work in the list that has one, or null.
  std::exception_ptr exception() const override {
    for (const WorkRef& work : works_) {
      if (const std::exception_ptr failure = work->exception()) return failure;
    }
    return nullptr;
  }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    for (const WorkRef& work : works_) work->wait(timeout);
    return true;
  }
  void abort() override {
    for (const WorkRef& work : works_) work->abort();
  }
  std::vector<at::Tensor> result() override {
    std::vector<at::Tensor> all;
    for (const WorkRef& work : works_) {
      for (at::Tensor& tensor : work->result()) all.push_back(std::move(tensor));
    }
    return all;
  }
  // Returns a future that completes when the futures of all works have completed, or fails when the
  // first of them fails.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    auto joint = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), devices());
    struct State {
      std::atomic<size_t> open;
      std::atomic<bool> failed{false};
      std::vector<at::Tensor> results;
    };
    auto state = std::make_shared<State>();
    state->open = works_.size();
    state->results = result();
    if (works_.empty()) complete_future(*joint, nullptr, state->results);
    for (const WorkRef& work : works_) {
      work->getFuture()->addCallback([joint, state](c10::ivalue::Future& part) {
        if (part.hasError() && !state->failed.exchange(true)) {
          complete_future(*joint, part.exception_ptr(), {});
        }
        if (state->open.fetch_sub(1) == 1 && !state->failed.load()) {
          complete_future(*joint, nullptr, state->results);
        }
      });
    }
    return joint;
  }

 private:
  // Returns the devices of all works without duplicates. PyTorch accepts only devices of one type.
  std::vector<c10::Device> devices() const {
    std::vector<c10::Device> all;
    for (const WorkRef& work : works_) {
      for (const c10::Device device : work->devices_of_future()) {
        if (std::find(all.begin(), all.end(), device) == all.end()) all.push_back(device);
      }
    }
    return all;
  }
  const std::vector<WorkRef> works_;
};

}  // namespace hetcomm::torch_backend
