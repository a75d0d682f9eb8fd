// The three kinds of panels that the dashboards have, drawn by Grafana's components.
import React from 'react';
import { dateTime, formattedValueToString, reduceField } from '@grafana/data';
import { BigValue, BigValueColorMode, BigValueGraphMode, BigValueJustifyMode, BigValueTextMode, TimeSeries } from '@grafana/ui';
import { TableNG } from '@grafana/ui/unstable';
import { theme } from './frames.js';

function Empty({ panel }) {
  return (
    <div style={{ height: '100%', display: 'flex', alignItems: 'center', justifyContent: 'center', color: theme.colors.text.secondary }}>
      {panel.fieldConfig.defaults.noValue ?? 'No data'}
    </div>
  );
}

// Vertical lines at the dashboard's annotations.
function marked(builder, payload) {
  builder.addHook('draw', (u) => {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.lineWidth = window.devicePixelRatio;
    ctx.setLineDash([4, 4]);
    for (const { time, color } of payload.annotations) {
      const x = Math.round(u.valToPos(time, 'x', true));
      if (x >= bbox.left && x <= bbox.left + bbox.width) {
        ctx.strokeStyle = color;
        ctx.fillStyle = color;
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        ctx.beginPath();
        ctx.moveTo(x, bbox.top + bbox.height);
        ctx.lineTo(x - 6, bbox.top + bbox.height + 8);
        ctx.lineTo(x + 6, bbox.top + bbox.height + 8);
        ctx.fill();
      }
    }
    ctx.restore();
  });
  return null;
}

export function Graph({ panel, frames, payload, width, height }) {
  if (!frames.length) {
    return <Empty panel={panel} />;
  }
  const range = { from: dateTime(payload.from), to: dateTime(payload.to) };
  return (
    <TimeSeries
      frames={frames}
      structureRev={1}
      timeRange={{ ...range, raw: range }}
      timeZone="utc"
      width={width}
      height={height}
      legend={panel.options.legend}
      options={panel.options}
      replaceVariables={(text) => text}
    >
      {(builder) => marked(builder, payload)}
    </TimeSeries>
  );
}

export function Stats({ panel, frames, width, height }) {
  const values = frames
    .map((frame) => frame.fields[1])
    .map((field) => ({ field, value: reduceField({ field, reducers: ['lastNotNull'] }).lastNotNull, last: field.values.at(-1) }))
    // Of a state that is a label, the series that holds now is the one that has a value at the end.
    .filter(({ value, last }) => (panel.options.textMode === 'name' ? last !== null : value !== null && value !== undefined));
  if (!values.length) {
    return <Empty panel={panel} />;
  }
  const share = width / values.length;
  return (
    <div style={{ display: 'flex' }}>
      {values.map(({ field, value }) => {
        const title = field.config.displayNameFromDS;
        return (
          <BigValue
            key={title}
            theme={theme}
            width={share}
            height={height}
            value={{ ...field.display(value), title }}
            colorMode={panel.options.colorMode === 'value' ? BigValueColorMode.Value : BigValueColorMode.BackgroundSolid}
            graphMode={BigValueGraphMode.None}
            justifyMode={BigValueJustifyMode.Center}
            text={panel.options.text}
            textMode={
              { name: BigValueTextMode.Name, value: BigValueTextMode.Value, value_and_name: BigValueTextMode.ValueAndName }[
                panel.options.textMode
              ]
            }
          />
        );
      })}
    </div>
  );
}

export function Rows({ panel, frames, width, height }) {
  const [frame] = frames;
  if (!frame || !frame.length) {
    return <Empty panel={panel} />;
  }
  return (
    <TableNG
      data={frame}
      width={width}
      height={height}
      cellHeight={panel.options.cellHeight}
      sortBy={panel.options.sortBy}
      fieldConfig={panel.fieldConfig}
      structureRev={1}
      enableVirtualization={false}
    />
  );
}
