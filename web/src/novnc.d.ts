// The part of noVNC's interface that this page uses; the package has no types.
declare module '@novnc/novnc' {
  export default class RFB extends EventTarget {
    constructor(target: HTMLElement, url: string, options?: { shared?: boolean });
    scaleViewport: boolean;
    viewOnly: boolean;
    background: string;
    disconnect(): void;
    clipboardPasteFrom(text: string): void;
  }
}
