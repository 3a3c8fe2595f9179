// Bad input to queues.
#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

using Options = hetcomm_queue_options_t;

class BadQueue : public BadInput {
 protected:
  static Options good() {
    Options options{};
    options.struct_size = sizeof(options);
    options.max_item_bytes = sizeof(bytes_);
    return options;
  }
  void expect_options_refused(const char* what, hetcomm_status_t expected, const Options& options) {
    expect_refused({{what, expected, [&](Outputs& out) {
                       return hetcomm_queue_create(communicator(), 0, HETCOMM_QUEUE_PUSH, &options,
                                                   out.first<hetcomm_queue_t*>());
                     }}});
  }

  char bytes_[16] = {};
};

TEST_F(BadQueue, InvalidQueueCreationIsRefused) {
  const Options options = good();
  const auto create = [&](hetcomm_communicator_t* c, int32_t peer, int32_t end, const Options* o) {
    return [=](Outputs& out) {
      return hetcomm_queue_create(c, peer, end, o, out.first<hetcomm_queue_t*>());
    };
  };
  hetcomm_communicator_t* const own = communicator();
  expect_refused({
      {"no communicator", HETCOMM_INVALID_ARGUMENT,
       create(nullptr, 0, HETCOMM_QUEUE_PUSH, &options)},
      {"no options", HETCOMM_INVALID_ARGUMENT, create(own, 0, HETCOMM_QUEUE_PUSH, nullptr)},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) {
         return hetcomm_queue_create(own, 0, HETCOMM_QUEUE_PUSH, &options, nullptr);
       }},
      {"no such end", HETCOMM_INVALID_ARGUMENT, create(own, 0, 0, &options)},
      {"no such end", HETCOMM_INVALID_ARGUMENT, create(own, 0, 3, &options)},
      {"no such rank", HETCOMM_OUT_OF_RANGE, create(own, 1, HETCOMM_QUEUE_PUSH, &options)},
      {"any rank", HETCOMM_OUT_OF_RANGE,
       create(own, HETCOMM_ANY_SOURCE, HETCOMM_QUEUE_PULL, &options)},
      {"progress by the caller", HETCOMM_UNSUPPORTED, create(own, 0, HETCOMM_QUEUE_PUSH, &options)},
  });
}

TEST_F(BadQueue, InvalidOptionsAreRefused) {
  Options options = good();
  options.max_item_bytes = 0;
  expect_options_refused("no size", HETCOMM_INVALID_ARGUMENT, options);
  options.max_item_bytes = UINT64_C(1) << 48;
  expect_options_refused("2^48 bytes", HETCOMM_OUT_OF_RANGE, options);
  options = good();
  options.depth = HETCOMM_QUEUE_MAX_DEPTH + 1;
  expect_options_refused("a large depth", HETCOMM_OUT_OF_RANGE, options);
  options = good();
  options.weight = HETCOMM_QUEUE_MAX_WEIGHT + 1;
  expect_options_refused("a large weight", HETCOMM_OUT_OF_RANGE, options);
  for (const bool has_rate : {false, true}) {
    options = good();
    if (has_rate) {
      options.max_bytes_per_second = 5;
    } else {
      options.weight = 5;
    }
    expect_refused({{"a share of the pulling end", HETCOMM_INVALID_ARGUMENT, [&](Outputs& out) {
                       return hetcomm_queue_create(communicator(), 0, HETCOMM_QUEUE_PULL, &options,
                                                   out.first<hetcomm_queue_t*>());
                     }}});
  }
  options = good();
  options.struct_size = 3;
  expect_options_refused("a struct size of 3", HETCOMM_INVALID_ARGUMENT, options);
}

TEST_F(BadQueue, NullHandlesAreRefused) {
  const hetcomm_buffer_t buffer = hetcomm_buffer_host(bytes_, sizeof(bytes_));
  expect_refused({
      {"push", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_queue_push(nullptr, buffer, nullptr, out.first<hetcomm_request_t*>());
       }},
      {"pull", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_queue_pull(nullptr, buffer, nullptr, out.first<hetcomm_request_t*>());
       }},
      {"drain", HETCOMM_INVALID_ARGUMENT, [](Outputs&) { return hetcomm_queue_drain(nullptr, 1); }},
      {"cancel", HETCOMM_INVALID_ARGUMENT, [](Outputs&) { return hetcomm_queue_cancel(nullptr); }},
      {"pending", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) { return hetcomm_queue_pending(nullptr, out.first<uint32_t>()); }},
  });
  EXPECT_EQ(hetcomm_queue_destroy(nullptr), HETCOMM_OK);
}

// Both ends of a queue in a context with a progress thread.
class BadItem : public ::testing::Test {
 protected:
  BadItem() : rank_(store_, 0, 1, "PROGRESS=thread;") {}
  void SetUp() override {
    ASSERT_TRUE(rank_.ok());
    Options options{};
    options.struct_size = sizeof(options);
    options.max_item_bytes = sizeof(bytes_);
    ASSERT_EQ(hetcomm_queue_create(rank_.communicator(), 0, HETCOMM_QUEUE_PUSH, &options, &push_),
              HETCOMM_OK);
    ASSERT_EQ(hetcomm_queue_create(rank_.communicator(), 0, HETCOMM_QUEUE_PULL, &options, &pull_),
              HETCOMM_OK);
  }
  void TearDown() override {
    EXPECT_EQ(hetcomm_communicator_destroy(rank_.communicator()), HETCOMM_BUSY);
    EXPECT_EQ(hetcomm_queue_destroy(push_), HETCOMM_OK);
    EXPECT_EQ(hetcomm_queue_destroy(pull_), HETCOMM_OK);
  }

  LocalStore store_;
  Rank rank_;
  hetcomm_queue_t* push_ = nullptr;
  hetcomm_queue_t* pull_ = nullptr;
  char bytes_[16] = {};
  char more_[17] = {};
};

TEST_F(BadItem, InvalidPushesAndPullsAreRefused) {
  const hetcomm_buffer_t good = hetcomm_buffer_host(bytes_, sizeof(bytes_));
  const hetcomm_buffer_t large = hetcomm_buffer_host(more_, sizeof(more_));
  const hetcomm_buffer_t nowhere = hetcomm_buffer_host(nullptr, 5);
  const hetcomm_buffer_t empty = hetcomm_buffer_host(bytes_, 0);
  const auto item = [](bool pushes, hetcomm_queue_t* queue, const hetcomm_buffer_t& buffer) {
    return [=](Outputs& out) {
      return pushes ? hetcomm_queue_push(queue, buffer, nullptr, out.first<hetcomm_request_t*>())
                    : hetcomm_queue_pull(queue, buffer, nullptr, out.first<hetcomm_request_t*>());
    };
  };
  expect_refused({
      {"a push at the pulling end", HETCOMM_INVALID_ARGUMENT, item(true, pull_, good)},
      {"a pull at the pushing end", HETCOMM_INVALID_ARGUMENT, item(false, push_, good)},
      {"a long item", HETCOMM_OUT_OF_RANGE, item(true, push_, large)},
      {"a long buffer", HETCOMM_OUT_OF_RANGE, item(false, pull_, large)},
      {"a null pointer", HETCOMM_INVALID_ARGUMENT, item(true, push_, nowhere)},
      {"no room", HETCOMM_INVALID_ARGUMENT, item(false, pull_, empty)},
      {"no request", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_queue_push(push_, good, nullptr, nullptr); }},
      {"no count", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_queue_pending(push_, nullptr); }},
  });
}

}  // namespace
}  // namespace hetcomm_test
