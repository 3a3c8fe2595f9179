// Bad input to communicators.
#include <string>

#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

using Options = hetcomm_communicator_options_t;

constexpr int32_t kWrongRanks[] = {-2, -1, 1, 2, INT_MAX, INT_MIN};

Options good_options() {
  Options options{};
  options.struct_size = sizeof(options);
  options.name = "second";
  options.timeout_ns = 1'000'000'000;
  return options;
}

TEST_F(BadInput, CommunicatorCreateWithInvalidArgumentsIsRefused) {
  const Options good = good_options();
  const auto with = [&](const std::function<void(Options&)>& change) {
    return [&, change](Outputs& out) {
      Options options = good_options();
      change(options);
      return hetcomm_communicator_create(context(), bootstrap(), &options,
                                         out.first<hetcomm_communicator_t*>());
    };
  };
  expect_refused({
      {"no context", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_create(nullptr, bootstrap(), &good,
                                            out.first<hetcomm_communicator_t*>());
       }},
      {"no bootstrap", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_create(context(), nullptr, &good,
                                            out.first<hetcomm_communicator_t*>());
       }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) {
         return hetcomm_communicator_create(context(), bootstrap(), &good, nullptr);
       }},
      {"struct_size 0", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.struct_size = 0; })},
      {"struct_size 1", HETCOMM_INVALID_ARGUMENT, with([](Options& o) { o.struct_size = 1; })},
      {"unknown transport", kAnyFailure, with([](Options& o) { o.transports = "pigeon"; })},
      {"one unknown transport", kAnyFailure, with([](Options& o) { o.transports = "tcp,pigeon"; })},
  });
}

TEST_F(BadInput, CommunicatorRebuildWithInvalidArgumentsIsRefused) {
  const Options good = good_options();
  expect_refused({
      {"no communicator", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_rebuild(nullptr, bootstrap(), &good,
                                             out.first<hetcomm_communicator_t*>());
       }},
      {"no bootstrap", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_rebuild(communicator(), nullptr, &good,
                                             out.first<hetcomm_communicator_t*>());
       }},
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) {
         return hetcomm_communicator_rebuild(communicator(), bootstrap(), &good, nullptr);
       }},
      {"struct_size", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         Options options = good;
         options.struct_size = 1;
         return hetcomm_communicator_rebuild(communicator(), bootstrap(), &options,
                                             out.first<hetcomm_communicator_t*>());
       }},
      {"shrink with a bootstrap from callbacks", HETCOMM_UNSUPPORTED,
       [&](Outputs& out) {
         Options options = good;
         options.shrink = 1;
         return hetcomm_communicator_rebuild(communicator(), bootstrap(), &options,
                                             out.first<hetcomm_communicator_t*>());
       }},
      {"shrink of nothing", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         Options options = good;
         options.shrink = 1;
         return hetcomm_communicator_create(context(), bootstrap(), &options,
                                            out.first<hetcomm_communicator_t*>());
       }},
  });
}

TEST_F(BadInput, NullCommunicatorsAreRefused) {
  EXPECT_EQ(hetcomm_communicator_destroy(nullptr), HETCOMM_OK);
  expect_refused({
      {"rank", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_communicator_rank(nullptr, out.first<int32_t>(), out.second<int32_t>());
       }},
      {"barrier", HETCOMM_INVALID_ARGUMENT,
       [](Outputs&) { return hetcomm_communicator_barrier(nullptr, HETCOMM_TIMEOUT_POLL); }},
      {"split", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_communicator_split(nullptr, 0, 0, out.first<hetcomm_communicator_t*>());
       }},
      {"abort", HETCOMM_INVALID_ARGUMENT,
       [](Outputs&) { return hetcomm_communicator_abort(nullptr, "none"); }},
      {"context", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_communicator_context(nullptr, out.first<hetcomm_context_t*>());
       }},
      {"epoch", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) { return hetcomm_communicator_epoch(nullptr, out.first<uint32_t>()); }},
      {"peer status", HETCOMM_INVALID_ARGUMENT,
       [](Outputs&) { return hetcomm_communicator_peer_status(nullptr, 0); }},
      {"status", HETCOMM_INVALID_ARGUMENT,
       [](Outputs&) { return hetcomm_communicator_status(nullptr); }},
      {"counters", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_communicator_counters(nullptr, 0, 1, out.first<hetcomm_counters_t>(),
                                              out.second<size_t>());
       }},
      {"link", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_communicator_link(nullptr, 0, 0, 0, nullptr, out.first<size_t>(),
                                          out.second<hetcomm_link_t>());
       }},
      {"device link", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_communicator_device_link(nullptr, 0, 0, 0, 0, 0, nullptr,
                                                 out.first<size_t>(), out.second<hetcomm_link_t>());
       }},
      {"link model", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_communicator_link_model(nullptr, HETCOMM_TOPOLOGY_JSON, 8,
                                                out.first<char>(), out.second<size_t>());
       }},
      {"explain", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_communicator_explain(nullptr, 0, 8, out.first<char>(),
                                             out.second<size_t>());
       }},
      {"explain pairings", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_communicator_explain_pairings(nullptr, 0, 0, HETCOMM_TOPOLOGY_JSON, 8,
                                                      out.first<char>(), out.second<size_t>());
       }},
  });
}

TEST_F(BadInput, InvalidLinkQueriesAreRefused) {
  size_t count = 7;
  hetcomm_link_t link{};
  link.struct_size = sizeof(link);
  hetcomm_link_resource_t resource{};
  EXPECT_EQ(hetcomm_communicator_link(communicator(), 0, 99, 0, nullptr, &count, &link),
            HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(hetcomm_communicator_link(communicator(), -1, 0, 0, nullptr, &count, &link),
            HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(hetcomm_communicator_link(communicator(), 0, 0, 1, nullptr, &count, &link),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_communicator_link(communicator(), 0, 0, 1, &resource, &count, &link),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_communicator_link(communicator(), 0, 0, 0, nullptr, nullptr, &link),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_communicator_link(communicator(), 0, 0, 0, nullptr, &count, nullptr),
            HETCOMM_INVALID_ARGUMENT);
  const auto device_link = [&](int32_t from, int32_t device, int32_t to, int32_t to_device,
                               size_t* out_count, hetcomm_link_t* out_link) {
    return hetcomm_communicator_device_link(communicator(), from, device, to, to_device, 0, nullptr,
                                            out_count, out_link);
  };
  EXPECT_EQ(device_link(0, 99, 0, 0, &count, &link), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(device_link(0, 0, 0, 99, &count, &link), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(device_link(0, -1, 0, 0, &count, &link), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(device_link(0, 0, 0, INT32_MIN, &count, &link), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(device_link(99, 0, 0, 0, &count, &link), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(device_link(0, 0, -1, 0, &count, &link), HETCOMM_OUT_OF_RANGE);
  EXPECT_EQ(device_link(0, 0, 0, 0, nullptr, &link), HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(device_link(0, 0, 0, 0, &count, nullptr), HETCOMM_INVALID_ARGUMENT);
  link.struct_size = 3;
  EXPECT_EQ(hetcomm_communicator_link(communicator(), 0, 0, 0, nullptr, &count, &link),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(hetcomm_communicator_link_model(communicator(), 77, 0, nullptr, &count),
            HETCOMM_INVALID_ARGUMENT);
  EXPECT_EQ(count, 7u);
}

TEST_F(BadInput, MissingOutputPointersAreRefused) {
  expect_refused({
      {"rank", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_rank(communicator(), nullptr, out.second<int32_t>());
       }},
      {"size", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_rank(communicator(), out.first<int32_t>(), nullptr);
       }},
      {"split", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_communicator_split(communicator(), 0, 0, nullptr); }},
      {"context", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_communicator_context(communicator(), nullptr); }},
      {"epoch", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_communicator_epoch(communicator(), nullptr); }},
      {"counters", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_counters(communicator(), 0, 1, nullptr, out.second<size_t>());
       }},
      {"count of counters", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_counters(communicator(), 0, 1, out.first<hetcomm_counters_t>(),
                                              nullptr);
       }},
      {"explanation", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_explain(communicator(), 0, 8, nullptr, out.second<size_t>());
       }},
      {"size of the explanation", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_explain(communicator(), 0, 8, out.first<char>(), nullptr);
       }},
      {"pairings", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_explain_pairings(communicator(), 0, 0, HETCOMM_TOPOLOGY_TEXT,
                                                      8, nullptr, out.second<size_t>());
       }},
      {"size of the pairings", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_communicator_explain_pairings(communicator(), 0, 0, HETCOMM_TOPOLOGY_TEXT,
                                                      8, out.first<char>(), nullptr);
       }},
  });
}

TEST_F(BadInput, RanksOutsideTheCommunicatorAreRefused) {
  for (const int32_t rank : kWrongRanks) {
    SCOPED_TRACE(rank);
    expect_refused({
        {"peer status", HETCOMM_OUT_OF_RANGE,
         [&](Outputs&) { return hetcomm_communicator_peer_status(communicator(), rank); }},
        {"counters", HETCOMM_OUT_OF_RANGE,
         [&](Outputs& out) {
           return hetcomm_communicator_counters(
               communicator(), rank, 1, out.first<hetcomm_counters_t>(), out.second<size_t>());
         }},
        {"explain", HETCOMM_OUT_OF_RANGE,
         [&](Outputs& out) {
           return hetcomm_communicator_explain(communicator(), rank, 8, out.first<char>(),
                                               out.second<size_t>());
         }},
        {"explain pairings", HETCOMM_OUT_OF_RANGE,
         [&](Outputs& out) {
           return hetcomm_communicator_explain_pairings(communicator(), rank, 0,
                                                        HETCOMM_TOPOLOGY_TEXT, 8, out.first<char>(),
                                                        out.second<size_t>());
         }},
    });
  }
}

TEST_F(BadInput, ExplainPairingsWithInvalidDeviceOrFormatIsRefused) {
  size_t size = 7;
  for (const int32_t device : {-1, 99, INT32_MAX}) {
    EXPECT_EQ(hetcomm_communicator_explain_pairings(communicator(), 0, device,
                                                    HETCOMM_TOPOLOGY_TEXT, 0, nullptr, &size),
              HETCOMM_OUT_OF_RANGE);
  }
  for (const int32_t format : {-1, int32_t{HETCOMM_TOPOLOGY_SVG}, 99}) {
    EXPECT_EQ(
        hetcomm_communicator_explain_pairings(communicator(), 0, 0, format, 0, nullptr, &size),
        HETCOMM_INVALID_ARGUMENT);
  }
  EXPECT_EQ(size, 7u);
  EXPECT_EQ(hetcomm_communicator_explain_pairings(communicator(), 0, 0, HETCOMM_TOPOLOGY_JSON, 0,
                                                  nullptr, &size),
            HETCOMM_OK)
      << hetcomm_last_error();
  EXPECT_GT(size, 7u);
}

// A small buffer is no error: the text is cut, NUL-terminated, and the required size is returned.
TEST_F(BadInput, ExplanationIsTruncatedToTheBuffer) {
  size_t size = 0;
  ASSERT_EQ(hetcomm_communicator_explain(communicator(), 0, 0, nullptr, &size), HETCOMM_OK)
      << hetcomm_last_error();
  ASSERT_GT(size, 1u);
  char text[8];
  std::memset(text, 'x', sizeof(text));
  ASSERT_EQ(hetcomm_communicator_explain(communicator(), 0, 4, text, &size), HETCOMM_OK);
  EXPECT_EQ(text[3], '\0');
  EXPECT_EQ(text[4], 'x');
  size_t count = 0;
  EXPECT_EQ(hetcomm_communicator_counters(communicator(), 0, 0, nullptr, &count), HETCOMM_OK);
}

TEST_F(BadInput, DestroyingTheParentOfASplitReturnsBusy) {
  hetcomm_communicator_t* part = nullptr;
  ASSERT_EQ(hetcomm_communicator_split(communicator(), 0, 0, &part), HETCOMM_OK)
      << hetcomm_last_error();
  expect_refused({{"parent", HETCOMM_BUSY,
                   [&](Outputs&) { return hetcomm_communicator_destroy(communicator()); }}});
  EXPECT_EQ(hetcomm_communicator_destroy(part), HETCOMM_OK) << hetcomm_last_error();
}

}  // namespace
}  // namespace hetcomm_test
