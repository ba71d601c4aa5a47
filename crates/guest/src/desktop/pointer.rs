//! Draws the mouse pointer for recordings. The screen itself shows none, because viewers draw their own.

use super::png_encoder::PIXEL_BYTES;
use super::record::Frame;

/// `#` is dark, `.` is light, anything else is transparent. The tip is at the top left.
const ARROW: [&[u8]; 17] = [
    b"#",
    b"##",
    b"#.#",
    b"#..#",
    b"#...#",
    b"#....#",
    b"#.....#",
    b"#......#",
    b"#.......#",
    b"#........#",
    b"#.....#####",
    b"#..#..#",
    b"#.# #..#",
    b"##  #..#",
    b"#    #..#",
    b"     #..#",
    b"      ##",
];
const DARK: [u8; PIXEL_BYTES] = [0x20, 0x18, 0x10, 0];
const LIGHT: [u8; PIXEL_BYTES] = [0xff, 0xff, 0xff, 0];

/// Draws the pointer with its tip at `x`, `y`, clipped to the screen.
pub(super) fn draw(frame: &mut Frame, x: i16, y: i16) {
    let width = frame.width as usize;
    let (Ok(x), Ok(y)) = (usize::try_from(x), usize::try_from(y)) else { return };
    for (down, line) in ARROW.iter().enumerate() {
        for (across, mark) in line.iter().enumerate().filter(|(across, _)| x + across < width) {
            let colour = match mark {
                b'#' => DARK,
                b'.' => LIGHT,
                _ => continue,
            };
            let at = ((y + down) * width + x + across) * PIXEL_BYTES;
            if let Some(pixel) = frame.pixels.get_mut(at..at + PIXEL_BYTES) {
                pixel.copy_from_slice(&colour);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointer_is_clipped_to_the_screen() {
        for (x, y) in [(0, 0), (15, 9), (19, 9), (30, 30), (-3, 5), (i16::MAX, i16::MAX)] {
            let mut frame = Frame { width: 20, height: 10, pixels: vec![7; 20 * 10 * PIXEL_BYTES] };
            draw(&mut frame, x, y);
            assert_eq!(frame.pixels.len(), 20 * 10 * PIXEL_BYTES);
            let is_drawn = frame.pixels.iter().any(|byte| *byte != 7);
            assert_eq!(is_drawn, (0..20).contains(&x) && (0..10).contains(&y), "{x},{y}");
        }
    }
}
