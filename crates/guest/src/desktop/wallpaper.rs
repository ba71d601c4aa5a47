//! The background of the screen. The guest draws it, so that it looks the same on every image and needs no process.

use protocol::GuiError;
use x11rb::connection::Connection;
use x11rb::protocol::xproto::{
    AtomEnum, ChangeWindowAttributesAux, ConnectionExt, CreateGCAux, ImageFormat, PropMode,
};
use x11rb::wrapper::ConnectionExt as _;

use super::display::{Display, lost, new_id, sent};

/// Size of one image request. Servers accept slightly more.
const STRIP_BYTES: usize = 192 * 1024;
/// Colors of the top and bottom of the sky, and of the three waves from far to near.
const TOP: [f32; 3] = [19.0, 41.0, 66.0];
const BOTTOM: [f32; 3] = [38.0, 112.0, 134.0];
const WAVES: [[f32; 3]; 3] = [[26.0, 86.0, 112.0], [18.0, 66.0, 92.0], [11.0, 44.0, 66.0]];
/// For each wave: height of its center line, amplitude, wavelength (as fractions of the screen) and phase.
const SHAPES: [[f32; 4]; 3] = [[0.66, 0.035, 0.9, 0.2], [0.77, 0.045, 0.7, 2.1], [0.88, 0.035, 1.1, 4.0]];

/// X resources that simple programs read before they open a window; they make xterm readable.
const RESOURCES: &[u8] = b"XTerm*faceName: DejaVu Sans Mono\nXTerm*faceSize: 11\nXTerm*background: #101c24\n\
    XTerm*foreground: #e4eaeb\nXTerm*cursorColor: #59c3c3\nXTerm*internalBorder: 6\nXTerm*saveLines: 10000\n\
    XTerm*utf8: 1\nXTerm*locale: true\nXTerm*scrollBar: false\nXft.dpi: 96\nXft.antialias: 1\n\
    Xft.hinting: 1\nXft.hintstyle: hintslight\n";

pub(super) fn paint(display: &Display) -> Result<(), GuiError> {
    let connection = &display.connection;
    let (width, height) = (display.width, display.height);
    let depth = connection.setup().roots.first().map_or(24, |screen| screen.root_depth);
    let (pixmap, context) = (new_id(display)?, new_id(display)?);
    sent(connection.create_pixmap(depth, pixmap, display.root, width, height))?;
    sent(connection.create_gc(context, pixmap, &CreateGCAux::new()))?;
    let rows = (STRIP_BYTES / (usize::from(width) * 4)).max(1);
    let mut from = 0usize;
    while from < usize::from(height) {
        let count = rows.min(usize::from(height) - from);
        let strip = draw(usize::from(width), usize::from(height), from, count);
        let (count, top) = (u16::try_from(count).unwrap_or(1), i16::try_from(from).unwrap_or(i16::MAX));
        sent(connection.put_image(
            ImageFormat::Z_PIXMAP,
            pixmap,
            context,
            width,
            count,
            0,
            top,
            0,
            depth,
            &strip,
        ))?;
        from += usize::from(count);
    }
    let background = ChangeWindowAttributesAux::new().background_pixmap(pixmap);
    sent(connection.change_window_attributes(display.root, &background))?;
    sent(connection.clear_area(false, display.root, 0, 0, 0, 0))?;
    // The property from which pseudo-transparent programs read the background.
    let name = display.names._XROOTPMAP_ID;
    sent(connection.change_property32(PropMode::REPLACE, display.root, name, AtomEnum::PIXMAP, &[pixmap]))?;
    let (resources, text) = (AtomEnum::RESOURCE_MANAGER, AtomEnum::STRING);
    sent(connection.change_property8(PropMode::REPLACE, display.root, resources, text, RESOURCES))?;
    sent(connection.free_gc(context))?;
    connection.flush().map_err(|error| lost(&error))?;
    display.ping()
}

/// Draws rows of pixels with four bytes each: blue, green, red, padding.
#[expect(clippy::cast_precision_loss, reason = "screens are far smaller")]
fn draw(width: usize, height: usize, from: usize, count: usize) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(width * count * 4);
    // The crests of the waves are the same in all rows.
    let lines: Vec<[f32; 3]> = (0..width).map(|x| crests(x as f32 / width as f32)).collect();
    for y in from..from + count {
        let down = y as f32 / height as f32;
        for crest in &lines {
            let colour = colour_at(down, crest, 1.0 / height as f32);
            let [red, green, blue] = colour.map(to_byte);
            pixels.extend_from_slice(&[blue, green, red, 0]);
        }
    }
    pixels
}

fn crests(across: f32) -> [f32; 3] {
    SHAPES.map(|[rest, height, length, start]| {
        rest + height * (across * std::f32::consts::TAU / length + start).sin()
    })
}

fn colour_at(down: f32, crests: &[f32; 3], step: f32) -> [f32; 3] {
    let mut colour = mix(TOP, BOTTOM, down);
    for (crest, wave) in crests.iter().zip(WAVES) {
        // Antialias the edge with one pixel of transition.
        let cover = ((down - crest) / step).clamp(0.0, 1.0);
        let deeper = mix(wave, WAVES[2], ((down - crest) * 1.2).clamp(0.0, 1.0));
        colour = mix(colour, deeper, cover);
    }
    colour
}

fn mix(one: [f32; 3], other: [f32; 3], part: f32) -> [f32; 3] {
    std::array::from_fn(|index| one[index] + (other[index] - one[index]) * part)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped just here")]
fn to_byte(value: f32) -> u8 {
    value.clamp(0.0, 255.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_background_is_lighter_above_the_waves_than_below() {
        let pixels = draw(64, 40, 0, 40);
        assert_eq!(pixels.len(), 64 * 40 * 4);
        let brightness = |row: usize| -> u32 {
            pixels[row * 64 * 4..(row + 1) * 64 * 4].iter().map(|byte| u32::from(*byte)).sum()
        };
        assert!(brightness(24) > brightness(39));
        assert!(brightness(24) > brightness(0));
    }
}
