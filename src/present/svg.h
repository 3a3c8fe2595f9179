// Writes pictures in SVG.
#pragma once

#include <string>
#include <string_view>

namespace hetcomm::present {

// Svg writes a picture in SVG 1.1 on a white background. Later elements cover earlier ones.
//
// Lengths are in pixels, written with one decimal at most. y grows downwards. |attributes|, such as
// R"(fill="#555")", are written unchanged. Text and hints can contain any characters. A viewer
// shows a hint when the pointer is over the element, or over text drawn on top of it.
class Svg {
 public:
  Svg(double width, double height, int font_size, std::string_view title);

  void text(double x, double y, std::string_view text, std::string_view attributes = {});
  // Draws text upwards from (x, y).
  void upright_text(double x, double y, std::string_view text, std::string_view attributes = {});
  void rectangle(double x, double y, double width, double height, std::string_view attributes,
                 std::string_view hint = {});
  void line(double x1, double y1, double x2, double y2, std::string_view attributes,
            std::string_view hint = {});
  // Adds an element that is described by its attributes alone, such as a path or a circle.
  void shape(std::string_view tag, std::string_view attributes, std::string_view hint = {});

  // Completes the picture and returns it.
  std::string take() &&;

 private:
  void add(std::string_view tag, std::string_view attributes, std::string_view more,
           std::string_view content);

  std::string text_;
};

// Formats a length or a position for a picture.
std::string pixels(double value);

}  // namespace hetcomm::present
