//! Pictures of two sweeps, as SVG.

use std::path::Path;

use plotters::coord::combinators::{BindKeyPoints, LogCoord, WithKeyPoints};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::latency::Latency;

const SIZE: (u32, u32) = (860, 480);
const OURS: RGBColor = RGBColor(0x1b, 0x5e, 0x9e);
const OTHER: RGBColor = RGBColor(0x6f, 0x6f, 0x6f);
const WORST: RGBColor = RGBColor(0xd9, 0x7b, 0x0d);
const TARGET: RGBColor = RGBColor(0xc0, 0x39, 0x2b);
const FAINT: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);

/// Flows a second by size of set: `(size, paylatch, floor)`.
pub fn throughput(path: &Path, cores: usize, points: &[(f64, f64, f64)]) {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    let x = Axis::new("payments in a set", points.iter().map(|p| p.0).collect());
    let values = points.iter().flat_map(|p| [p.1, p.2, p.2 * 0.6]);
    let y = Axis::new("payments per second", steps(values));
    let mut chart = chart(&root, &format!("Throughput by size of set ({cores} cores, everything durable)"), x, y);
    let floor = |share: f64| points.iter().map(|p| (p.0, p.2 * share)).collect::<Vec<_>>();
    line(&mut chart, "bare SQL, the same rows", floor(1.0), OTHER);
    line(&mut chart, "paylatch, whole life", points.iter().map(|p| (p.0, p.1)).collect(), OURS);
    dashes(&mut chart, "target: 0.6 of bare SQL", floor(0.6), TARGET);
    legend(&mut chart, SeriesLabelPosition::LowerRight);
    root.present().unwrap();
}

/// Milliseconds by offered load, and the targets, which are set for 50 a second.
pub fn latency(path: &Path, cores: usize, points: &[Latency]) {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    let x = Axis::new("payments offered per second", points.iter().map(|p| p.offered).collect());
    let y = Axis::new("milliseconds", steps(points.iter().flat_map(|p| [p.p50, p.p99]).chain([10.0, 40.0])));
    let (left, right) = (x.least, x.most);
    let caption = format!("Create to BIZ_SUCCESS by offered load ({cores} cores, one call a payment)");
    let mut chart = chart(&root, &caption, x, y);
    line(&mut chart, "99th percentile", points.iter().map(|p| (p.offered, p.p99)).collect(), WORST);
    line(&mut chart, "median", points.iter().map(|p| (p.offered, p.p50)).collect(), OURS);
    dashes(&mut chart, "target at 50 per second, 99th percentile: 40 ms", vec![(left, 40.0), (right, 40.0)], WORST);
    dashes(&mut chart, "target at 50 per second, median: 10 ms", vec![(left, 10.0), (right, 10.0)], OURS);
    legend(&mut chart, SeriesLabelPosition::UpperLeft);
    root.present().unwrap();
}

/// A logarithmic axis, with its ticks and a little room around them.
struct Axis {
    name: &'static str,
    ticks: Vec<f64>,
    least: f64,
    most: f64,
}

impl Axis {
    fn new(name: &'static str, ticks: Vec<f64>) -> Self {
        let least = ticks.iter().copied().fold(f64::MAX, f64::min) / 1.15;
        let most = ticks.iter().copied().fold(0.0, f64::max) * 1.15;
        Self { name, ticks, least, most }
    }
}

/// 1, 2, 5, 10, 20 and so on around what is to be shown.
fn steps(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let (least, most) = values.fold((f64::MAX, 0.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    let all: Vec<f64> = (-3..9).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10_f64.powi(power))).collect();
    let first = all.iter().rposition(|step| *step <= least).unwrap_or(0);
    let last = all.iter().position(|step| *step >= most).unwrap_or(all.len() - 1);
    all[first..=last].to_vec()
}

type Log = WithKeyPoints<LogCoord<f64>>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Log, Log>>;

fn chart<'a, 'b>(
    root: &DrawingArea<SVGBackend<'b>, plotters::coord::Shift>,
    caption: &str,
    x: Axis,
    y: Axis,
) -> Chart<'a, 'b> {
    root.fill(&WHITE).unwrap();
    let mut chart = ChartBuilder::on(root)
        .caption(caption, ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(46)
        .y_label_area_size(76)
        .build_cartesian_2d(
            (x.least..x.most).log_scale().with_key_points(x.ticks),
            (y.least..y.most).log_scale().with_key_points(y.ticks),
        )
        .unwrap();
    let label = |value: &f64| if *value < 1.0 { format!("{value}") } else { format!("{value:.0}") };
    chart
        .configure_mesh()
        .x_desc(x.name)
        .y_desc(y.name)
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .x_label_style(("sans-serif", 14).into_text_style(root).pos(Pos::new(HPos::Center, VPos::Top)))
        .y_label_style(("sans-serif", 14).into_text_style(root))
        .axis_desc_style(("sans-serif", 16))
        .bold_line_style(FAINT)
        .light_line_style(WHITE)
        .draw()
        .unwrap();
    chart
}

fn line(chart: &mut Chart<'_, '_>, name: &str, points: Vec<(f64, f64)>, colour: RGBColor) {
    let dots = points.clone();
    chart
        .draw_series(LineSeries::new(points, colour.stroke_width(2)))
        .unwrap()
        .label(name)
        .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 24, y)], colour.stroke_width(2)));
    chart.draw_series(dots.into_iter().map(|at| Circle::new(at, 3, colour.filled()))).unwrap();
}

/// A target.
fn dashes<'b>(chart: &mut Chart<'b, 'b>, name: &str, points: Vec<(f64, f64)>, colour: RGBColor) {
    let (dash, gap) = (6, 3);
    chart.draw_series(DashedLineSeries::new(points, dash, gap, colour.stroke_width(2))).unwrap().label(name).legend(
        move |at| {
            let piece = |from| PathElement::new(vec![(from, 0), (from + dash, 0)], colour.stroke_width(2));
            EmptyElement::at(at) + piece(0) + piece(dash + gap) + piece(2 * (dash + gap))
        },
    );
}

fn legend<'b>(chart: &mut Chart<'b, 'b>, position: SeriesLabelPosition) {
    chart
        .configure_series_labels()
        .position(position)
        .label_font(("sans-serif", 14))
        .border_style(FAINT)
        .background_style(WHITE.filled())
        .draw()
        .unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_enclose_what_is_shown() {
        assert_eq!(steps([3.0, 40.0].into_iter()), [2.0, 5.0, 10.0, 20.0, 50.0]);
        assert_eq!(steps([10.0, 20.0].into_iter()), [10.0, 20.0]);
    }

    #[test]
    fn pictures_name_their_axes_and_targets() {
        let folder = tempfile::tempdir().unwrap();
        let (sets, loads) = (folder.path().join("sets.svg"), folder.path().join("loads.svg"));
        throughput(&sets, 2, &[(1.0, 124.0, 121.0), (20.0, 1582.0, 2174.0), (200.0, 6000.0, 9000.0)]);
        latency(
            &loads,
            2,
            &[Latency { offered: 10.0, p50: 6.0, p99: 20.0 }, Latency { offered: 800.0, p50: 40.0, p99: 300.0 }],
        );
        for (picture, texts) in [
            (&sets, ["payments in a set", "payments per second", "target: 0.6 of bare SQL"]),
            (&loads, ["payments offered per second", "milliseconds", "median: 10 ms"]),
        ] {
            let svg = std::fs::read_to_string(picture).unwrap();
            for text in texts {
                assert!(svg.contains(text), "{text}");
            }
        }
    }
}
