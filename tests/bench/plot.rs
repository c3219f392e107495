//! Pictures of two sweeps, as SVG.

use std::path::Path;

use plotters::coord::combinators::LogCoord;
use plotters::prelude::*;

use crate::latency::Latency;

const SIZE: (u32, u32) = (860, 480);
const OURS: RGBColor = RGBColor(0x1b, 0x5e, 0x9e);
const OTHER: RGBColor = RGBColor(0x8a, 0x8a, 0x8a);
const TARGET: RGBColor = RGBColor(0xc0, 0x39, 0x2b);

/// Flows a second by size of set: `(size, paylatch, floor)`.
pub fn throughput(path: &Path, points: &[(f64, f64, f64)]) {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).unwrap();
    let most = points.iter().map(|p| p.1.max(p.2)).fold(1.0, f64::max) * 1.6;
    let least = points.iter().map(|p| p.1.min(p.2)).fold(f64::MAX, f64::min) * 0.6;
    let mut chart = ChartBuilder::on(&root)
        .caption("Throughput by size of set (2 cores, everything durable)", ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(46)
        .y_label_area_size(76)
        .build_cartesian_2d((0.9..1200.0).log_scale(), (least..most).log_scale())
        .unwrap();
    chart
        .configure_mesh()
        .x_desc("payments in a set")
        .y_desc("payments per second")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .light_line_style(WHITE)
        .draw()
        .unwrap();
    line(&mut chart, "bare SQL, the same rows", points.iter().map(|p| (p.0, p.2)).collect(), OTHER);
    line(&mut chart, "paylatch, whole life", points.iter().map(|p| (p.0, p.1)).collect(), OURS);
    line(&mut chart, "target: 0.6 of bare SQL", points.iter().map(|p| (p.0, p.2 * 0.6)).collect(), TARGET);
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()
        .unwrap();
    root.present().unwrap();
}

/// Milliseconds by offered load.
pub fn latency(path: &Path, points: &[Latency]) {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE).unwrap();
    let most = points.iter().map(|p| p.p99).fold(40.0, f64::max) * 1.6;
    let least = points.iter().map(|p| p.p50).fold(10.0, f64::min) * 0.6;
    let right = points.iter().map(|p| p.offered).fold(10.0, f64::max) * 1.2;
    let mut chart = ChartBuilder::on(&root)
        .caption("Create to BIZ_SUCCESS by offered load, single calls (2 cores)", ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(46)
        .y_label_area_size(76)
        .build_cartesian_2d((8.0..right).log_scale(), (least..most).log_scale())
        .unwrap();
    chart
        .configure_mesh()
        .x_desc("payments offered per second")
        .y_desc("milliseconds")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .light_line_style(WHITE)
        .draw()
        .unwrap();
    line(&mut chart, "99th percentile", points.iter().map(|p| (p.offered, p.p99)).collect(), OTHER);
    line(&mut chart, "median", points.iter().map(|p| (p.offered, p.p50)).collect(), OURS);
    line(&mut chart, "targets at 50 per second: 10 and 40 ms", vec![(50.0, 10.0), (50.0, 40.0)], TARGET);
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()
        .unwrap();
    root.present().unwrap();
}

type LogLog<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, LogCoord<f64>>>;

fn line(chart: &mut LogLog<'_, '_>, name: &str, points: Vec<(f64, f64)>, colour: RGBColor) {
    let dots = points.clone();
    chart
        .draw_series(LineSeries::new(points, colour.stroke_width(2)))
        .unwrap()
        .label(name)
        .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 20, y)], colour.stroke_width(2)));
    chart.draw_series(dots.into_iter().map(|at| Circle::new(at, 3, colour.filled()))).unwrap();
}
