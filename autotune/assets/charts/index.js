// The parts of Apache ECharts that page.js draws with. `make charts` makes ../echarts.min.js of them;
// the whole library is half as large again, and browsers take that much longer to read it.
import { graphic, init, use, version } from "echarts/core";
import { BarChart, CustomChart, HeatmapChart, LineChart, ParallelChart, ScatterChart } from "echarts/charts";
import {
  DataZoomComponent, GridComponent, LegendComponent, MarkLineComponent, ParallelComponent, TitleComponent,
  TooltipComponent, VisualMapContinuousComponent,
} from "echarts/components";
import { LabelLayout, LegacyGridContainLabel } from "echarts/features";
import { CanvasRenderer } from "echarts/renderers";

use([
  BarChart, CustomChart, HeatmapChart, LineChart, ParallelChart, ScatterChart,
  DataZoomComponent, GridComponent, LegendComponent, MarkLineComponent, ParallelComponent, TitleComponent,
  TooltipComponent, VisualMapContinuousComponent,
  LabelLayout, LegacyGridContainLabel, CanvasRenderer,
]);

export { graphic, init, version };
