// One dashboard as a page: the grid, titles and panels of Grafana, without its server.
import React from 'react';
import { createRoot } from 'react-dom/client';
import { ThemeContext, dateTime } from '@grafana/data';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { framesOf, theme } from './frames.js';
import { Graph, Stats, Rows } from './charts.jsx';

const WIDTH = 1560;
const MARGIN = 20;
const ROW = 38;
const GAP = 8;
const HEADER = 76;

const KINDS = { timeseries: Graph, stat: Stats, table: Rows };

function Cell({ panel, payload }) {
  const { x, y, w, h } = panel.gridPos;
  const column = (WIDTH + GAP) / 24;
  const place = { position: 'absolute', left: MARGIN + x * column, top: HEADER + y * ROW };
  const width = w * column - GAP;
  const height = h * ROW - GAP;
  if (panel.type === 'row') {
    return (
      <div style={{ ...place, width, height, lineHeight: `${height}px`, fontSize: 18, fontWeight: 500 }}>
        <span style={{ color: theme.colors.text.secondary }}>⌄</span>&nbsp; {panel.title}
      </div>
    );
  }
  const Kind = KINDS[panel.type];
  const frames = framesOf(panel, payload);
  return (
    <div style={place} data-panel={panel.id}>
      <PanelChrome width={width} height={height} title={panel.title} padding={panel.type === 'table' ? 'none' : 'md'}>
        {(innerWidth, innerHeight) => (
          <Kind panel={panel} frames={frames} payload={payload} width={innerWidth} height={innerHeight} />
        )}
      </PanelChrome>
    </div>
  );
}

function Page({ payload }) {
  const { dashboard } = payload;
  const bottom = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  const span = [payload.from, payload.to].map((t) => dateTime(t).utc().format('HH:mm:ss')).join(' – ');
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div
        style={{
          position: 'relative',
          width: WIDTH + 2 * MARGIN,
          height: HEADER + bottom * ROW + MARGIN,
          background: theme.colors.background.canvas,
          color: theme.colors.text.primary,
          fontFamily: theme.typography.fontFamily,
        }}
      >
        <div style={{ position: 'absolute', left: MARGIN, top: 16, display: 'flex', gap: 24, alignItems: 'center', width: WIDTH }}>
          <span style={{ fontSize: 24, fontWeight: 500 }}>{dashboard.title}</span>
          {Object.entries(payload.variables).map(([name, value]) => (
            <span key={name} style={{ border: `1px solid ${theme.colors.border.medium}`, borderRadius: 4, padding: '5px 10px', background: theme.colors.background.primary, fontSize: 14 }}>
              <span style={{ color: theme.colors.text.secondary }}>{name}</span>&nbsp; {value}
            </span>
          ))}
          <span style={{ marginLeft: 'auto', color: theme.colors.text.secondary, fontSize: 14 }}>{span} UTC</span>
        </div>
        {dashboard.panels.map((panel) => (
          <Cell key={panel.id} panel={panel} payload={payload} />
        ))}
      </div>
    </ThemeContext.Provider>
  );
}

const payload = await (await fetch('./payload.json')).json();
createRoot(document.getElementById('root')).render(<Page payload={payload} />);
