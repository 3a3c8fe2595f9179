// Bad input to collective operations: faults that one rank can detect are refused, and the refused
// call does not count as an operation.
#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

using Options = hetcomm_collective_options_t;
using Request = hetcomm_request_t*;

struct Arguments {
  hetcomm_communicator_t* communicator;
  int32_t root;
  const hetcomm_buffer_t* send;  // one buffer, or a list of one for functions that take lists
  const hetcomm_buffer_t* recv;
  hetcomm_datatype_t datatype;
  hetcomm_reduction_t reduction;
  const Options* options;
};

// A wrapper that gives every function one signature.
struct Function {
  const char* name;
  bool has_root;
  bool reduces;
  bool sends_list;
  bool receives_list;
  hetcomm_status_t (*call)(const Arguments& a, Request* out);
};

constexpr Function kFunctions[] = {
    {"broadcast", true, false, false, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_broadcast(a.communicator, a.root, *a.recv, a.datatype, a.options, out);
     }},
    {"reduce", true, true, false, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_reduce(a.communicator, a.root, *a.send, *a.recv, a.datatype, a.reduction,
                             a.options, out);
     }},
    {"allreduce", false, true, false, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_allreduce(a.communicator, *a.send, *a.recv, a.datatype, a.reduction,
                                a.options, out);
     }},
    {"allgather", false, false, false, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_allgather(a.communicator, *a.send, *a.recv, a.datatype, a.options, out);
     }},
    {"allgatherv", false, false, false, true,
     [](const Arguments& a, Request* out) {
       return hetcomm_allgatherv(a.communicator, *a.send, a.recv, a.datatype, a.options, out);
     }},
    {"reduce_scatter", false, true, false, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_reduce_scatter(a.communicator, *a.send, *a.recv, a.datatype, a.reduction,
                                     a.options, out);
     }},
    {"reduce_scatterv", false, true, true, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_reduce_scatterv(a.communicator, a.send, *a.recv, a.datatype, a.reduction,
                                      a.options, out);
     }},
    {"alltoall", false, false, false, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_alltoall(a.communicator, *a.send, *a.recv, a.datatype, a.options, out);
     }},
    {"alltoallv", false, false, true, true,
     [](const Arguments& a, Request* out) {
       return hetcomm_alltoallv(a.communicator, a.send, a.recv, a.datatype, a.options, out);
     }},
    {"gather", true, false, false, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_gather(a.communicator, a.root, *a.send, *a.recv, a.datatype, a.options, out);
     }},
    {"gatherv", true, false, false, true,
     [](const Arguments& a, Request* out) {
       return hetcomm_gatherv(a.communicator, a.root, *a.send, a.recv, a.datatype, a.options, out);
     }},
    {"scatter", true, false, false, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_scatter(a.communicator, a.root, *a.send, *a.recv, a.datatype, a.options, out);
     }},
    {"scatterv", true, false, true, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_scatterv(a.communicator, a.root, a.send, *a.recv, a.datatype, a.options, out);
     }},
    {"scan", false, true, false, false,
     [](const Arguments& a, Request* out) {
       return hetcomm_scan(a.communicator, *a.send, *a.recv, a.datatype, a.reduction, a.options,
                           out);
     }},
};

class BadCollective : public BadInput {
 protected:
  Arguments good() const {
    return {communicator(), 0, &send_, &recv_, HETCOMM_FLOAT32, HETCOMM_REDUCE_SUM, nullptr};
  }
  // Tests every function that |applies| selects.
  template <typename Applies, typename Change>
  void expect_all_refused(const char* what, hetcomm_status_t expected, Applies&& applies,
                          Change&& change) {
    for (const Function& function : kFunctions) {
      if (!applies(function)) continue;
      SCOPED_TRACE(function.name);
      Arguments bad = good();
      change(bad);
      expect_refused({{what, expected,
                       [&](Outputs& out) { return function.call(bad, out.first<Request>()); }}});
    }
  }
  static bool all(const Function&) { return true; }

  float in_[4] = {};
  float out_[4] = {};
  hetcomm_buffer_t send_ = hetcomm_buffer_host(in_, sizeof(in_));
  hetcomm_buffer_t recv_ = hetcomm_buffer_host(out_, sizeof(out_));
};

TEST_F(BadCollective, CollectiveRefuseRequiresACommunicator) {
  EXPECT_EQ(hetcomm_collective_refuse(nullptr, "why"), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_collective_refuse(communicator(), nullptr), HETCOMM_OK);
}

TEST_F(BadCollective, NullPointersAreRefused) {
  expect_all_refused("no communicator", HETCOMM_INVALID_ARGUMENT, all,
                     [](Arguments& a) { a.communicator = nullptr; });
  for (const Function& function : kFunctions) {
    SCOPED_TRACE(function.name);
    EXPECT_EQ(function.call(good(), nullptr), HETCOMM_INVALID_ARGUMENT);
  }
  expect_all_refused(
      "no list to send", HETCOMM_INVALID_ARGUMENT,
      [](const Function& function) { return function.sends_list; },
      [](Arguments& a) { a.send = nullptr; });
  expect_all_refused(
      "no list to receive", HETCOMM_INVALID_ARGUMENT,
      [](const Function& function) { return function.receives_list; },
      [](Arguments& a) { a.recv = nullptr; });
  const hetcomm_buffer_t null = hetcomm_buffer_host(nullptr, 16);
  expect_all_refused("a null buffer", HETCOMM_INVALID_ARGUMENT, all,
                     [&](Arguments& a) { a.recv = &null; });
  const hetcomm_buffer_t endless = {nullptr, 16, UINT64_MAX};
  expect_all_refused("an endless buffer", HETCOMM_OUT_OF_RANGE, all,
                     [&](Arguments& a) { a.recv = &endless; });
  expect_refused(
      {{"no communicator", HETCOMM_INVALID_ARGUMENT,
        [&](Outputs& out) { return hetcomm_barrier(nullptr, nullptr, out.first<Request>()); }},
       {"no request", HETCOMM_INVALID_ARGUMENT,
        [&](Outputs&) { return hetcomm_barrier(communicator(), nullptr, nullptr); }}});
}

TEST_F(BadCollective, InvalidTypesOperatorsRootsAndLengthsAreRefused) {
  expect_all_refused("no such type", HETCOMM_INVALID_ARGUMENT, all,
                     [](Arguments& a) { a.datatype = HETCOMM_COMPLEX128 + 1; });
  expect_all_refused("no such type", HETCOMM_INVALID_ARGUMENT, all,
                     [](Arguments& a) { a.datatype = -1; });
  const auto reduces = [](const Function& function) { return function.reduces; };
  expect_all_refused("no such operator", HETCOMM_INVALID_ARGUMENT, reduces,
                     [](Arguments& a) { a.reduction = HETCOMM_REDUCE_PREMUL_SUM + 1; });
  expect_all_refused("not defined", HETCOMM_UNSUPPORTED, reduces,
                     [](Arguments& a) { a.reduction = HETCOMM_REDUCE_XOR; });
  for (const int32_t root : {-1, 1, INT_MAX}) {
    expect_all_refused(
        "no such root", HETCOMM_OUT_OF_RANGE,
        [](const Function& function) { return function.has_root; },
        [root](Arguments& a) { a.root = root; });
  }
  const hetcomm_buffer_t uneven = hetcomm_buffer_host(out_, 7);
  expect_all_refused("half an element", HETCOMM_INVALID_ARGUMENT, all, [&](Arguments& a) {
    a.send = &uneven;
    a.recv = &uneven;
  });
  const hetcomm_buffer_t shorter = hetcomm_buffer_host(in_, 8);
  expect_all_refused(
      "two lengths", HETCOMM_INVALID_ARGUMENT,
      [](const Function& function) { return std::strcmp(function.name, "broadcast") != 0; },
      [&](Arguments& a) { a.send = &shorter; });
  expect_refused({{"no such type", HETCOMM_INVALID_ARGUMENT,
                   [](Outputs& out) { return hetcomm_datatype_size(99, out.first<size_t>()); }},
                  {"nowhere to write", HETCOMM_INVALID_ARGUMENT,
                   [](Outputs&) { return hetcomm_datatype_size(HETCOMM_INT8, nullptr); }}});
}

TEST_F(BadCollective, InvalidOptionsAreRefused) {
  const auto refuse = [this](const char* what, hetcomm_status_t expected, const Options& options) {
    expect_all_refused(what, expected, all, [&](Arguments& a) { a.options = &options; });
    expect_refused({{what, expected, [&](Outputs& out) {
                       return hetcomm_barrier(communicator(), &options, out.first<Request>());
                     }}});
  };
  for (const size_t size : kWrongSizes) {
    Options options{};
    options.struct_size = size;
    refuse("a wrong size", HETCOMM_INVALID_ARGUMENT, options);
  }
  Options plain{};
  plain.struct_size = sizeof(plain);
  Options options = plain;
  options.reserved = 1;
  refuse("reserved is set", HETCOMM_INVALID_ARGUMENT, options);
  options = plain;
  options.flags = 1u << 31;
  refuse("an unknown flag", HETCOMM_INVALID_ARGUMENT, options);
  options = plain;
  options.algorithm = "magic";
  refuse("no such algorithm", HETCOMM_UNSUPPORTED, options);
  options = plain;
  options.rank_count = 1;
  refuse("a list without ranks", HETCOMM_INVALID_ARGUMENT, options);
  const int32_t ranks[] = {0, 0};
  options.ranks = ranks;
  options.rank_count = 2;
  refuse("more ranks than there are", HETCOMM_INVALID_ARGUMENT, options);
  options.rank_count = 0;
  refuse("an empty list", HETCOMM_INVALID_ARGUMENT, options);
  const int32_t nobody[] = {1};
  options.ranks = nobody;
  options.rank_count = 1;
  refuse("no such rank", HETCOMM_OUT_OF_RANGE, options);
}

}  // namespace
}  // namespace hetcomm_test
