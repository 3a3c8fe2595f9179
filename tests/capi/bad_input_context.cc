// Bad input to contexts, and to calls that describe the build and the machine.
#include <string>

#include <hetcomm/compat.h>

#include "tests/capi/bad_input.h"

namespace hetcomm_test {
namespace {

hetcomm_status_t create_with(const hetcomm_context_options_t& options, Outputs& out) {
  return hetcomm_context_create(&options, out.first<hetcomm_context_t*>());
}

TEST(BadContext, CreateWithInvalidOptionsIsRefused) {
  hetcomm_context_options_t good{};
  good.struct_size = sizeof(good);
  expect_refused({
      {"no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_context_create(&good, nullptr); }},
      {"neither options nor output", HETCOMM_INVALID_ARGUMENT,
       [](Outputs&) { return hetcomm_context_create(nullptr, nullptr); }},
  });
  for (const size_t size : kWrongSizes) {
    expect_refused({{"struct_size", HETCOMM_INVALID_ARGUMENT, [&](Outputs& out) {
                       hetcomm_context_options_t options = good;
                       options.struct_size = size;
                       return create_with(options, out);
                     }}});
  }
  for (const int32_t value : {-1, 99, INT_MAX, INT_MIN}) {
    expect_refused({
        {"progress", HETCOMM_INVALID_ARGUMENT,
         [&](Outputs& out) {
           hetcomm_context_options_t options = good;
           options.progress = value;
           return create_with(options, out);
         }},
        {"log level", HETCOMM_INVALID_ARGUMENT,
         [&](Outputs& out) {
           hetcomm_context_options_t options = good;
           options.log_level = value;
           return create_with(options, out);
         }},
    });
  }
}

// The text names the fault.
TEST(BadContext, ErrorNamesTheInvalidSetting) {
  const struct {
    const char* settings;
    const char* named;
  } cases[] = {
      {"NOISE=1", "NOISE"},
      {"LOG", "LOG"},
      {"LOG=loud", "HETCOMM_LOG"},
      {"TIMEOUT=soon", "HETCOMM_TIMEOUT"},
      {"CREDIT_BYTES=4Q", "HETCOMM_CREDIT_BYTES"},
      {"RAILS=0", "1 to 64"},
      {"TRANSPORTS=shm, pigeon", "there is no transport 'pigeon'; there are self, shm, rdma, tcp"},
      {"DEVICES=abacus", "abacus"},
      {"DEVICES=sim-handle:speed=1G", "speed"},
      {"DEVICES=sim-address:bandwidth=10", "bandwidth"},
  };
  for (const auto& tested : cases) {
    expect_refused({{tested.settings, HETCOMM_INVALID_ARGUMENT, [&](Outputs& out) {
                       hetcomm_context_options_t options{};
                       options.struct_size = sizeof(options);
                       options.settings = tested.settings;
                       return create_with(options, out);
                     }}});
    EXPECT_NE(std::string(hetcomm_last_error()).find(tested.named), std::string::npos)
        << hetcomm_last_error();
  }
}

TEST(BadContext, ErrorNamesTheInvalidStructSize) {
  hetcomm_context_options_t options{};
  options.struct_size = 4;
  expect_refused({{"struct_size 4", HETCOMM_INVALID_ARGUMENT,
                   [&](Outputs& out) { return create_with(options, out); }}});
  EXPECT_NE(std::string(hetcomm_last_error()).find("struct_size is 4"), std::string::npos)
      << hetcomm_last_error();
}

TEST_F(BadInput, NullContextIsRefusedAndUsedContextIsBusy) {
  expect_refused({
      {"progress", HETCOMM_INVALID_ARGUMENT,
       [](Outputs&) { return hetcomm_context_progress(nullptr); }},
      {"destroy in use", HETCOMM_BUSY,
       [&](Outputs&) { return hetcomm_context_destroy(context()); }},
  });
  EXPECT_EQ(hetcomm_context_destroy(nullptr), HETCOMM_OK);
  EXPECT_EQ(hetcomm_context_progress(context()), HETCOMM_OK);
}

TEST_F(BadInput, InvalidDescriptionQueriesAreRefused) {
  expect_refused({
      {"variable: no output", HETCOMM_INVALID_ARGUMENT,
       [](Outputs&) { return hetcomm_variable_describe(0, nullptr); }},
      {"variable: past the last", HETCOMM_OUT_OF_RANGE,
       [](Outputs& out) {
         return hetcomm_variable_describe(10'000, out.first<hetcomm_variable_info_t>());
       }},
      {"variable: far past the last", HETCOMM_OUT_OF_RANGE,
       [](Outputs& out) {
         return hetcomm_variable_describe(SIZE_MAX, out.first<hetcomm_variable_info_t>());
       }},
      {"value: no context", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_context_variable(nullptr, "HETCOMM_LOG", out.first<const char*>());
       }},
      {"value: no name", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_context_variable(context(), nullptr, out.first<const char*>());
       }},
      {"value: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_context_variable(context(), "HETCOMM_LOG", nullptr); }},
      {"value: unknown name", HETCOMM_NOT_FOUND,
       [&](Outputs& out) {
         return hetcomm_context_variable(context(), "HETCOMM_NOISE", out.first<const char*>());
       }},
      {"value: empty name", HETCOMM_NOT_FOUND,
       [&](Outputs& out) {
         return hetcomm_context_variable(context(), "", out.first<const char*>());
       }},
      {"transport: no context", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_context_transport(nullptr, 0, out.first<hetcomm_transport_info_t>());
       }},
      {"transport: no output", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_context_transport(context(), 0, nullptr); }},
      {"transport: past the last", HETCOMM_OUT_OF_RANGE,
       [&](Outputs& out) {
         return hetcomm_context_transport(context(), 1000, out.first<hetcomm_transport_info_t>());
       }},
      {"transport: far past the last", HETCOMM_OUT_OF_RANGE,
       [&](Outputs& out) {
         return hetcomm_context_transport(context(), SIZE_MAX,
                                          out.first<hetcomm_transport_info_t>());
       }},
  });
}

TEST_F(BadInput, InvalidTopologyQueriesAreRefused) {
  expect_refused({
      {"topology: no context", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_context_topology(nullptr, HETCOMM_TOPOLOGY_TEXT, 8, out.first<char>(),
                                         out.second<size_t>());
       }},
      {"topology: no text", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_context_topology(context(), HETCOMM_TOPOLOGY_TEXT, 8, nullptr,
                                         out.second<size_t>());
       }},
      {"topology: no size", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_context_topology(context(), HETCOMM_TOPOLOGY_TEXT, 8, out.first<char>(),
                                         nullptr);
       }},
      {"topology: no such format", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_context_topology(context(), 3, 8, out.first<char>(), out.second<size_t>());
       }},
      {"topology: a negative format", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_context_topology(context(), -1, 8, out.first<char>(), out.second<size_t>());
       }},
  });
}

TEST_F(BadInput, TopologyIsTruncatedToTheBuffer) {
  size_t size = 0;
  ASSERT_EQ(hetcomm_context_topology(context(), HETCOMM_TOPOLOGY_JSON, 0, nullptr, &size),
            HETCOMM_OK);
  ASSERT_GT(size, 20u);
  char text[5] = "####";
  ASSERT_EQ(hetcomm_context_topology(context(), HETCOMM_TOPOLOGY_JSON, sizeof(text), text, &size),
            HETCOMM_OK);
  EXPECT_STREQ(text, "{\n  ");
}

constexpr const char* kMeasurements = R"({
  "format": "hetcomm link measurements", "version": 1, "hosts": [{"label": "a"}, {"label": "b"}],
  "rounds": [{"transfers": [{"from": 0, "to": 1, "bytes_per_s": 3000000}]},
             {"transfers": [{"from": 1, "to": 0, "bytes_per_s": 2000000}]}]})";

std::string model_of_two_hosts() {
  std::string text(4096, '#');
  size_t size = 0;
  EXPECT_EQ(hetcomm_link_model_infer(kMeasurements, HETCOMM_TOPOLOGY_JSON, text.size(), text.data(),
                                     &size),
            HETCOMM_OK)
      << hetcomm_last_error();
  text.resize(size - 1);
  return text;
}

TEST(BadLinkModel, InferenceFromInvalidMeasurementsIsRefused) {
  const auto infer = [](const char* measurements, int32_t format) {
    return [=](Outputs& out) {
      return hetcomm_link_model_infer(measurements, format, 8, out.first<char>(),
                                      out.second<size_t>());
    };
  };
  const std::string endless(9u << 20, ' ');
  const std::string brackets(1u << 20, '[');
  expect_refused({
      {"no measurements", HETCOMM_INVALID_ARGUMENT, infer(nullptr, HETCOMM_TOPOLOGY_JSON)},
      {"empty", HETCOMM_INVALID_ARGUMENT, infer("", HETCOMM_TOPOLOGY_JSON)},
      {"of another kind", HETCOMM_INVALID_ARGUMENT,
       infer(R"({"format": "hetcomm link model", "version": 1})", HETCOMM_TOPOLOGY_JSON)},
      {"of another version", HETCOMM_UNSUPPORTED,
       infer(R"({"format": "hetcomm link measurements", "version": 2})", HETCOMM_TOPOLOGY_JSON)},
      {"too long", HETCOMM_INVALID_ARGUMENT, infer(endless.c_str(), HETCOMM_TOPOLOGY_JSON)},
      {"too deep", HETCOMM_INVALID_ARGUMENT, infer(brackets.c_str(), HETCOMM_TOPOLOGY_JSON)},
      {"no such format", HETCOMM_INVALID_ARGUMENT, infer(kMeasurements, 3)},
      {"no text", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_link_model_infer(kMeasurements, HETCOMM_TOPOLOGY_JSON, 8, nullptr,
                                         out.second<size_t>());
       }},
      {"no size", HETCOMM_INVALID_ARGUMENT,
       [](Outputs& out) {
         return hetcomm_link_model_infer(kMeasurements, HETCOMM_TOPOLOGY_JSON, 8, out.first<char>(),
                                         nullptr);
       }},
  });
}

TEST(BadLinkModel, InvalidRateQueriesAreRefused) {
  const std::string model = model_of_two_hosts();
  const auto rates = [](const char* text, size_t count, hetcomm_link_ends_t ends) {
    return [=](Outputs& out) {
      return hetcomm_link_model_rates(text, count, &ends, out.first<uint64_t>());
    };
  };
  const hetcomm_link_ends_t good{"a", nullptr, "b", nullptr};
  expect_refused({
      {"no model", HETCOMM_INVALID_ARGUMENT, rates(nullptr, 1, good)},
      {"no such model", HETCOMM_INVALID_ARGUMENT, rates("{", 1, good)},
      {"too many", HETCOMM_INVALID_ARGUMENT, rates(model.c_str(), 65537, good)},
      {"no host", HETCOMM_INVALID_ARGUMENT,
       rates(model.c_str(), 1, {nullptr, nullptr, "b", nullptr})},
      {"unknown host", HETCOMM_NOT_FOUND, rates(model.c_str(), 1, {"a", nullptr, "c", nullptr})},
      {"unknown NIC", HETCOMM_NOT_FOUND, rates(model.c_str(), 1, {"a", "eth7", "b", nullptr})},
      {"no transfers", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs& out) {
         return hetcomm_link_model_rates(model.c_str(), 1, nullptr, out.first<uint64_t>());
       }},
      {"no rates", HETCOMM_INVALID_ARGUMENT,
       [&](Outputs&) { return hetcomm_link_model_rates(model.c_str(), 1, &good, nullptr); }},
  });
  const hetcomm_link_ends_t both[] = {good, {"b", "", "a", ""}, good};
  uint64_t out[3] = {};
  ASSERT_EQ(hetcomm_link_model_rates(model.c_str(), 3, both, out), HETCOMM_OK);
  EXPECT_EQ(out[0], 1500000u);
  EXPECT_EQ(out[1], 2000000u);
  EXPECT_EQ(out[2], 1500000u);
  EXPECT_EQ(hetcomm_link_model_rates(model.c_str(), 0, nullptr, nullptr), HETCOMM_OK);
}

TEST(BadStatus, UnknownStatusIsNamedUnknown) {
  for (const hetcomm_status_t status : {2, 1000, -16, -1000, INT_MAX, INT_MIN}) {
    EXPECT_STREQ(hetcomm_status_name(status), "UNKNOWN") << status;
    EXPECT_STRNE(hetcomm_status_text(status), "") << status;
  }
}

TEST(BadStatus, VersionCallsAndLastErrorNeedNoContext) {
  EXPECT_STRNE(hetcomm_version_string(), "");
  EXPECT_STRNE(hetcomm_build_string(), "");
  EXPECT_EQ(hetcomm_abi_version(), static_cast<uint32_t>(HETCOMM_ABI_VERSION));
  EXPECT_NE(hetcomm_last_error(), nullptr);
}

}  // namespace
}  // namespace hetcomm_test
