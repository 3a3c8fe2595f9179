#include "src/present/svg.h"

#include <cmath>
#include <utility>

#include <fmt/core.h>

namespace hetcomm::present {
namespace {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string hint_of(std::string_view hint) {
  return hint.empty() ? "" : fmt::format("<title>{}</title>", escaped(hint));
}

}  // namespace

std::string pixels(double value) {
  // Adding 0.0 turns negative zero into zero.
  return fmt::format("{}", std::round(value * 10) / 10 + 0.0);
}

Svg::Svg(double width, double height, int font_size, std::string_view title) {
  text_ = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" )"
      R"(viewBox="0 0 {0} {1}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif" )"
      R"(font-size="{2}" fill="#222">)"
      "\n<title>{3}</title>\n<style>text {{ pointer-events: none }}</style>\n"
      R"(<rect width="100%" height="100%" fill="#ffffff"/>)"
      "\n",
      pixels(width), pixels(height), font_size, escaped(title));
}

void Svg::text(double x, double y, std::string_view text, std::string_view attributes) {
  add("text", fmt::format(R"(x="{}" y="{}")", pixels(x), pixels(y)), attributes, escaped(text));
}

void Svg::upright_text(double x, double y, std::string_view text, std::string_view attributes) {
  add("text",
      fmt::format(R"svg(transform="translate({} {}) rotate(-90)")svg", pixels(x), pixels(y)),
      attributes, escaped(text));
}

void Svg::rectangle(double x, double y, double width, double height, std::string_view attributes,
                    std::string_view hint) {
  add("rect",
      fmt::format(R"(x="{}" y="{}" width="{}" height="{}")", pixels(x), pixels(y), pixels(width),
                  pixels(height)),
      attributes, hint_of(hint));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view attributes,
               std::string_view hint) {
  add("line",
      fmt::format(R"(x1="{}" y1="{}" x2="{}" y2="{}")", pixels(x1), pixels(y1), pixels(x2),
                  pixels(y2)),
      attributes, hint_of(hint));
}

void Svg::shape(std::string_view tag, std::string_view attributes, std::string_view hint) {
  add(tag, attributes, {}, hint_of(hint));
}

std::string Svg::take() && {
  text_ += "</svg>\n";
  return std::move(text_);
}

void Svg::add(std::string_view tag, std::string_view attributes, std::string_view more,
              std::string_view content) {
  text_ += fmt::format("<{} {}{}{}", tag, attributes, more.empty() ? "" : " ", more);
  text_ += content.empty() ? "/>\n" : fmt::format(">{}</{}>\n", content, tag);
}

}  // namespace hetcomm::present
